"""What every storage refuses at its door: one check for each verb, called before anything is read or written.

Promise 8 is that bad input gets the same error from every storage, so these are for yours as well. A batch
is judged whole; a settlement is judged by itself, at its turn, with dibs.model.check_arguments.check_settle_action.
Each raises Refused or BatchRefused, and returns nothing but what is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, get_args

from dibs.errors import Refused
from dibs.model import check_arguments, check_jobs, check_values
from dibs.model.check_jobs import CheckedBatch
from dibs.model.limits import LIMITS, Limits
from dibs.model.requests import End, EnqueueRequest, JobPatch, SettingsPatch
from dibs.model.results import ExportRecord, State
from dibs.storage.protocol import Watch

#: Characters of a `claim_id`, and seconds that a blocking claim may wait.
MOST_CLAIM_ID: Final = 64
MOST_TIMEOUT: Final = 3600
STATES: Final = get_args(State)
WATCHES: Final = get_args(Watch)


def check_enqueue(queue: str, requests: Sequence[EnqueueRequest], within: Limits = LIMITS) -> CheckedBatch:
    """Refuse what no queue may be sent, and each bad item of the batch by its claim_id.

    Returns the batch, known to be good; one that a client has checked comes so, and is not looked at again.
    """
    check_jobs.check_target(queue, within)
    return check_jobs.check_batch(requests, within)


def check_queue(
    queue: str, limit: int | None = None, *, ids: Sequence[str] = (), within: Limits = LIMITS
) -> None:
    """Refuse a queue name, a limit or ids outside their bounds, for every verb that takes them."""
    check_jobs.check_queue(queue, within)
    check_arguments.check_texts("ids", ids)
    if limit is not None:
        check_arguments.check_limit(limit)


def check_claim_blocking(
    queue: str, limit: int, claim_id: str, timeout: float, within: Limits = LIMITS
) -> None:
    """Refuse a `claim_id` that is no short ASCII text, and a `timeout` out of range."""
    check_queue(queue, limit, within=within)
    if not (claim_id.isascii() and claim_id.isprintable() and 1 <= len(claim_id) <= MOST_CLAIM_ID):
        raise Refused(
            f"claim_id is {claim_id!r}; it must be 1 to {MOST_CLAIM_ID} characters of ASCII", field="claim_id"
        )
    if not 0 < timeout <= MOST_TIMEOUT:
        raise Refused(
            f"timeout is {timeout!r}; it must be above 0 s and at most {MOST_TIMEOUT}", field="timeout"
        )


def check_list(queue: str, state: str, limit: int, within: Limits = LIMITS) -> None:
    """Refuse a state that is none."""
    check_queue(queue, limit, within=within)
    check_arguments.check_word("state", state, STATES)


def check_split(queue: str, parts: int, state: str | None, within: Limits = LIMITS) -> None:
    """Refuse parts that are none or beyond number, and a state that is none."""
    check_queue(queue, within=within)
    check_arguments.check_parts(parts)
    if state is not None:
        check_arguments.check_word("state", state, STATES)


def check_finish(queue: str, end: End, within: Limits = LIMITS) -> None:
    """Refuse an end that breaks a limit."""
    check_queue(queue, within=within)
    check_arguments.check_settle_action(end, within)


def check_grant(queues: Sequence[str], ttl: int, holder: str, within: Limits = LIMITS) -> None:
    """Refuse a lease that would be over at once, or a holder that no log could keep."""
    check_renew(queues, ttl, within)
    check_arguments.check_holder(holder, within)


def check_renew(queues: Sequence[str], ttl: int, within: Limits = LIMITS) -> None:
    """Refuse a lease that would be over at once."""
    check_arguments.check_queues(queues, within)
    check_arguments.check_ttl(ttl)


def check_drop(queues: Sequence[str], limit: int, within: Limits = LIMITS) -> None:
    """Refuse a limit that lets nothing through: the caller would ask for ever."""
    check_arguments.check_queues(queues, within)
    check_arguments.check_limit(limit)


def check_report(queue: str, progress: bytes, within: Limits = LIMITS) -> None:
    """Refuse progress that is too large or no JSON."""
    check_queue(queue, within=within)
    check_values.check_bytes("progress", progress, within.progress)
    check_values.check_json("progress", progress, within.depth)


def check_amend(queue: str, patch: JobPatch, within: Limits = LIMITS) -> None:
    """Refuse a patch; the size of the merged attributes is for the storage to check, by check_attributes."""
    check_queue(queue, within=within)
    check_arguments.check_patch(patch, within)


def check_configure(queue: str, patch: SettingsPatch, within: Limits = LIMITS) -> None:
    """Refuse settings that no queue could have."""
    check_queue(queue, within=within)
    check_arguments.check_settings(patch)


def check_import(queue: str, records: Sequence[ExportRecord], within: Limits = LIMITS) -> None:
    """Refuse whole ids that no storage could have exported."""
    check_queue(queue, within=within)
    for record in records:
        check_arguments.check_record(record.id, record.slot, within)


def check_counts(queues: Sequence[str], within: Limits = LIMITS) -> None:
    """Refuse what cannot be names of queues."""
    check_arguments.check_queues(queues, within)


def check_wait(queues: Sequence[str], for_: str, ids: Sequence[str], within: Limits = LIMITS) -> None:
    """Refuse to wait for what there is not."""
    check_arguments.check_queues(queues, within)
    check_arguments.check_texts("ids", ids)
    check_arguments.check_word("for_", for_, WATCHES)


def check_now(now: int | None, *, manual: bool) -> None:
    """Refuse `now` where the storage has a clock of its own, and a time that is none."""
    if now is None:
        return
    if not manual:
        raise Refused('now= is taken only by a storage opened with clock="manual"', field="now")
    check_arguments.check_now(now)
