"""The actions of the test clients, the record of their calls, and the situations that actions lead to.

An action is a random call as data, which can be sent to another process. A failing example is shrunk by
removing actions. So an action does not contain fences, revisions or leases. It picks them from the
`ClientState` when it runs, for example "the newest run".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Literal

from attrs import define, evolve, field, frozen

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import ClaimResult, State

#: Lifetimes of leases in ms. A short lease expires within an example once a client adds `PAST_SHORT_TTL` to
#: its time.
LONG_TTL, SHORT_TTL, PAST_SHORT_TTL = 3_600_000, 10, 11
UNUSED_LEASE = "0" * 32
#: 2026-01-01 UTC, in ms.
START = 1_767_225_600_000
#: The ids of all examples. Few ids, so that clients meet.
IDS = ("a", "b")


@frozen(kw_only=True)
class ClientAction:
    """One call that a client is to make."""

    operation: str
    ids: tuple[str, ...] = ("a",)
    #: Selects a run or revision of the client's state. 0 is the newest.
    nth_newest: int = 0
    #: Selects a lease: 0 is the long lease, 1 the short lease, 2 a lease that was never granted. -1 is the
    #: newest lease.
    lease: int = 0
    #: A key of `verbs.settle.SETTLE_ACTIONS`.
    settle_as: str = "complete"
    #: An index into `verbs.enqueue.CONFLICT_OPTIONS`.
    conflict: int = 0
    #: An index into `verbs.enqueue.JOB_DATA`, or `LARGE_DATA`.
    data: int = 0
    #: Delay of an enqueued job in ms.
    delay: int = 0
    limit: int = 10
    #: Chooses a variant of the operation, for example `running` of a cancel.
    flag: bool = False
    #: Added to the time of the example, in ms.
    clock_offset: int = 0
    #: A key of `verbs.configure.SETTINGS_PATCHES`.
    configure_to: str = "pause"
    #: The state of a listing.
    state: State = "waiting"
    #: Makes payloads, request keys and imported numbers differ. With 0, they are those of the tables.
    serial: int = 0


@frozen
class Hold:
    """The point at which a client stops until the other clients of its round are done."""

    #: Counts the coroutines that the client enters or resumes, or its lines of storage code.
    at: int
    unit: Literal["coroutine", "line"] = "coroutine"


@define
class ClientState:
    """The runs, revisions, leases and offsets of the log that clients received so far, oldest first."""

    runs: list[tuple[str, int]] = field(factory=list)
    revisions: list[tuple[str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)
    offsets: list[str] = field(factory=list)

    def add_claim(self, claim: ClaimResult) -> None:
        """Add the fences and revisions of the claimed jobs."""
        self.runs += [(job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(job.id, job.revision) for job in claim.jobs]

    def lease(self, action: ClientAction) -> str:
        """Return the lease that an action picks, or one that was never granted if the client has too few."""
        return self.leases[action.lease] if action.lease < min(2, len(self.leases)) else UNUSED_LEASE

    def run(self, action: ClientAction) -> tuple[str, int]:
        """Return the id and the fence of the run that an action picks; without any run, a fence of 1."""
        return nth_newest(self.runs, action.nth_newest) or (action.ids[0], 1)

    def revision(self, action: ClientAction) -> tuple[str, int]:
        """Return the id and the revision that an action picks; without any, a revision of 1."""
        return nth_newest(self.revisions, action.nth_newest) or (action.ids[0], 1)


def nth_newest(received: list[tuple[str, int]], nth: int) -> tuple[str, int] | None:
    return received[-1 - nth % len(received)] if received else None


@frozen
class Program:
    """The actions that one client runs next, with the client state and the time they start from."""

    actions: tuple[ClientAction, ...]
    queue: str
    state: ClientState
    #: In ms; 0 for the time of the storage itself.
    now: int
    #: The place in the storage's code at which the client stops during this action; None for no stop. Clients
    #: without a scheduler ignore it.
    hold: Hold | None = None

    def with_own_state(self) -> Program:
        """Return a copy with its own `ClientState`, so that the client can add to it."""
        state = self.state
        own = ClientState(list(state.runs), list(state.revisions), list(state.leases), list(state.offsets))
        return evolve(self, state=own)


#: The end of a call. `unknown`: the call has no answer, and may take effect at any time after it was sent.
#: `refused`: it had no effect. `raised`: it raised an exception that the contract does not allow.
Completion = Literal["answered", "unknown", "refused", "raised"]


@define(kw_only=True)
class ClientCall:
    """One call of one client, with the times at which it was sent (`invoked`) and answered (`returned`).

    All clients of an example take both times from the same clock.
    """

    client: str
    operation: str
    queue: str
    args: Mapping[str, Any]
    #: The storage time passed as an argument, in ms; 0 if the call has the time of the storage itself.
    now: int
    invoked: float
    #: Infinite until the answer arrives.
    returned: float = inf
    completion: Completion = "unknown"
    answer: Any = None

    def overlaps(self, other: ClientCall) -> bool:
        """Return whether the two calls overlap in time."""
        return self.invoked <= other.returned and other.invoked <= self.returned


@define(kw_only=True)
class Snapshot:
    """The content of a queue, read while all clients are idle."""

    now: int
    slots: Mapping[str, Slot]
    #: Jobs of the fail queue. Their ids are generated.
    failed: Mapping[str, Slot] = field(factory=dict)
    #: The settings of the queue and all events of its log. They are read only after the last round.
    settings: Settings | None = None
    events: Sequence[LogEvent] | None = None
    #: The offset of each event.
    offsets: Sequence[str] = ()


@define(kw_only=True)
class Round:
    """Calls that may overlap, and a snapshot taken after they returned."""

    calls: list[ClientCall]
    snapshot: Snapshot | None = None


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
