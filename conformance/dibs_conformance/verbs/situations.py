"""The situations in which races and faults are tried, as the actions that lead to them."""

from __future__ import annotations

from dibs_conformance.verbs.actions import IDS, PAST_SHORT_TTL, ClientAction

#: `ClientAction.data` for jobs with the key `k`, and with another key (verbs/enqueue.py, `JOB_DATA`).
KEYED_DATA, OTHER_KEY_DATA = 3, 4

#: Every example begins with one long and one short lease.
GRANTS = (ClientAction(operation="grant"), ClientAction(operation="grant", lease=1))

ENQUEUE, CLAIM = ClientAction(operation="enqueue"), ClientAction(operation="claim")
ENQUEUE_BOTH = ClientAction(operation="enqueue", ids=IDS)
ENQUEUE_OTHER = ClientAction(operation="enqueue", ids=IDS[1:])
CLAIM_ONE = ClientAction(operation="claim", limit=1)
SETTLE = ClientAction(operation="settle")
HAND_OFF = ClientAction(operation="settle", settle_as="hand off")
REAP = ClientAction(operation="reap", clock_offset=PAST_SHORT_TTL)
READ_LOG = ClientAction(operation="events")


def configure(to: str) -> ClientAction:
    """Return a configure with one of verbs.configure.SETTINGS_PATCHES."""
    return ClientAction(operation="configure", configure_to=to)


#: The job `a` is active under the long lease.
RUNNING = (*GRANTS, ENQUEUE, CLAIM)
WITH_SUCCESSOR = (*RUNNING, ClientAction(operation="enqueue", data=1))
#: The job `a` is active under the short lease, which can expire within an example.
RUNNING_SHORT_LEASE = (*GRANTS, ENQUEUE, ClientAction(operation="claim", lease=1))
HANDED_OFF = (*RUNNING, HAND_OFF)
FAILED = (*RUNNING, ClientAction(operation="settle", settle_as="fail"))
#: An outcome of `a` that expires as soon as a client adds `PAST_SHORT_TTL` to its time.
SHORT_OUTCOME = (configure("short outcomes"), *RUNNING_SHORT_LEASE, SETTLE)

#: Both ids wait, with the same key.
KEYED = (*GRANTS, ClientAction(operation="enqueue", ids=IDS, data=KEYED_DATA))
#: As KEYED, in a queue that allows one run of a key at a time.
ONE_OF_TWO = (*GRANTS, configure("one of a key"), ClientAction(operation="enqueue", ids=IDS, data=KEYED_DATA))
#: One of two jobs of a full key runs, and the other waits. A storage without limits has the same states.
FULL_KEY = (*KEYED, configure("one of a key"), CLAIM_ONE)
#: Two waiting jobs of a queue that allows one start a minute.
ONE_START = (*GRANTS, configure("one start"), ENQUEUE_BOTH)
