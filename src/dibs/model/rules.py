"""What a verb answers for an id as it stands: the questions of contract 3, in their order.

`transitions` makes the next slot; these say which one is called for, and what the caller is told. A storage
that keeps whole slots needs no more of the contract than these two rooms to treat an id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import UNSET
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model import transitions
from dibs.model.check_arguments import check_settle_action
from dibs.model.job import EMPTY, Job, NewJob, Outcome, OutcomeRetention, Slot, Successor
from dibs.model.limits import Limits
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    Fail,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    EnqueueResult,
    FinishStatus,
    FoundState,
    ReapedKind,
    RetryFailedStatus,
    SettleResult,
    State,
)

DONE: Final = SettleResult("done")
RETURNED: Final = SettleResult("returned")
LOST: Final = SettleResult("lost")
CANCELLED: Final = SettleResult("cancelled")
#: What a patch may change only while the job waits.
WHILE_WAITING: Final = frozenset({"payload", "run_at", "delay", "priority"})


# -- what is seen ------------------------------------------------------------------------------------


def visible(slot: Slot, now: int) -> Slot:
    """Return a slot as everybody may see it: an expired outcome is absent."""
    if slot.outcome is None or transitions.unexpired(slot.outcome, now) is not None:
        return slot
    return EMPTY if slot.current is None else replace(slot, outcome=None)


def is_in_state(slot: Slot, state: State, now: int) -> bool:
    """Tell whether a visible slot is in a state of list()."""
    return _STATES[state](slot, now)


def _waiting(slot: Slot, now: int) -> bool:  # noqa: ARG001 - all of the table take the same two
    return slot.current is not None and slot.current.run is None


def _scheduled(slot: Slot, now: int) -> bool:
    return slot.current is not None and slot.current.run is None and slot.current.run_at > now


def _active(slot: Slot, now: int) -> bool:  # noqa: ARG001
    return slot.current is not None and slot.current.run is not None


def _handed_off(slot: Slot, now: int) -> bool:  # noqa: ARG001
    return slot.current is not None and slot.current.run is not None and slot.current.run.lease is None


_STATES: Final[dict[State, Callable[[Slot, int], bool]]] = {
    "waiting": _waiting,
    "scheduled": _scheduled,
    "active": _active,
    "handed_off": _handed_off,
    "blocked": lambda slot, now: slot.successor is not None,  # noqa: ARG005
    "completed": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "completed",  # noqa: ARG005
    "failed": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "failed",  # noqa: ARG005
    "cancelled": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "cancelled",  # noqa: ARG005
}


# -- enqueue -----------------------------------------------------------------------------------------


def reject(slot: Slot, how: Reject, now: int) -> EnqueueResult | None:
    """Return why a Reject leaves the id as it is; None when it may come in."""
    job = slot.current
    if job is not None:
        if job.run is None:
            return EnqueueResult("duplicate", "waiting", job.first, job.revision)
        return EnqueueResult("duplicate", _found_active(slot), job.first, job.revision)
    outcome = transitions.unexpired(slot.outcome, now)
    if outcome is None:
        return None
    if outcome.kind == "completed" or (outcome.kind == "failed" and how.failed):
        return EnqueueResult(outcome.kind, "nothing", outcome.first, outcome.revision)
    return None


def accept(
    slot: Slot, new: NewJob, how: Update, now: int, number: int
) -> tuple[Slot, EnqueueResult, Job | Successor | None]:
    """Let a job meet its id by Update; return the next slot, the answer, and what the job went into."""
    job = slot.current
    if job is None:
        slot = transitions.queue(slot, new, now, number)
        return slot, EnqueueResult("queued", "nothing", number, number), slot.current
    if job.run is None:
        slot = transitions.update(slot, job, new, how, now, number)
        return slot, EnqueueResult("updated", "waiting", job.first, number), slot.current
    found = _found_active(slot)
    slot = transitions.block(slot, new, how, now, number)
    into = slot.successor
    return slot, EnqueueResult("blocked", found, into.first if into else number, number), into


def _found_active(slot: Slot) -> FoundState:
    return "active" if slot.successor is None else "active+blocked"


# -- settle, finish, reap ----------------------------------------------------------------------------


def settle(slot: Slot, one: Settlement, limits: Limits) -> SettleResult | SettleAction:
    """Return the answer where nothing changes, else how the run really goes on (`settle_result` answers that).

    A late holder is `lost`, but a repeat hears what the first one heard. Only what would be taken is
    judged by its limits. A run asked to cancel never comes back: its return is an end as cancelled.
    """
    run = slot.current.run if slot.current is not None else None
    if run is None or run.fence != one.fence:
        return settle_from_outcome(slot.outcome, one)
    try:
        check_settle_action(one.how, limits)
    except Refused as refused:
        return SettleResult("refused", str(refused))
    if isinstance(one.how, (Complete, Fail, Cancelled)):
        return one.how
    if run.lease is None:
        if isinstance(one.how, HandOff):
            return settle_result(slot, one.how, one.how)
        return SettleResult("refused", "a handed-off run can only end")
    return Cancelled() if run.cancel_requested else one.how


def settle_from_outcome(outcome: Outcome | None, one: Settlement) -> SettleResult:
    """Answer a settlement whose run is not active: a repeat hears what the first one heard."""
    if outcome is None or outcome.fence != one.fence or outcome.fence == 0:
        return LOST
    if isinstance(one.how, (Complete, Fail, Cancelled)):
        return DONE if transitions.outcome_kind(one.how) == outcome.kind else LOST
    return CANCELLED if outcome.kind == "cancelled" else LOST


def settle_result(slot: Slot, asked: SettleAction, done: SettleAction) -> SettleResult:
    """Answer a settlement of the run in `slot` that was asked for like this, and done like that."""
    if isinstance(done, Complete):
        return DONE
    if isinstance(done, HandOff):
        return SettleResult("handed_off", revision=slot.current.revision if slot.current is not None else 0)
    if isinstance(done, (RetryLater, Release)):
        return RETURNED
    return CANCELLED if isinstance(asked, (RetryLater, Release, HandOff)) else DONE


def action_for_return(job: Job, *, stalled: bool) -> tuple[SettleAction, ReapedKind]:
    """Return how a run that is taken from its lease goes on: a stall, or without a mark if it was dropped."""
    if job.run is not None and job.run.cancel_requested:
        return Cancelled(), "cancelled"
    return (RetryLater(cause="stall"), "stalled") if stalled else (Release(), "released")


def finish(slot: Slot, how: End, revision: int) -> FinishStatus | None:
    """Return the answer where nothing changes; None when the run is to be ended."""
    outcome, job = slot.outcome, slot.current
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return "done" if transitions.outcome_kind(how) == outcome.kind else "lost"
    if job is None:
        return "not_found"
    if not job.first <= revision <= job.revision:
        return "lost"
    return "refused" if job.run is None or job.run.lease is not None else None


# -- by id -------------------------------------------------------------------------------------------


def cancel(slot: Slot, now: int, *, running: bool) -> CancelStatus:
    """Return the answer. What is to be done for `cancelled` and `requested` the slot itself says:

    a waiting job ends; a successor is dropped; with `running` a run under a lease is asked to stop, and
    a handed-off one ends.
    """
    job = slot.current
    if job is None:
        outcome = transitions.unexpired(slot.outcome, now)
        return "not_found" if outcome is None else outcome.kind
    if job.run is None:
        return "cancelled"
    if running:
        return "cancelled" if job.run.lease is None else "requested"
    return "active" if slot.successor is None else "cancelled"


def amend(slot: Slot, patch: JobPatch, now: int) -> AmendStatus:
    """Tell whether the patch may be taken, by what it names and how the id stands."""
    asks = {name for name in patch.__struct_fields__ if getattr(patch, name) is not UNSET}
    if slot.current is None:
        kept = transitions.unexpired(slot.outcome, now) is not None
        return "amended" if kept and asks == {"retention"} else "not_found"
    return "active" if slot.current.run is not None and asks & WHILE_WAITING else "amended"


def retry_failed(slot: Slot, now: int) -> RetryFailedStatus:
    """Tell whether the failed outcome may be consumed: only `queued` does it."""
    if slot.current is not None:
        return "live"
    outcome = transitions.unexpired(slot.outcome, now)
    if outcome is None:
        return "not_found"
    if outcome.kind != "failed":
        return outcome.kind
    return "not_kept" if outcome.data is None else "queued"


# -- import ------------------------------------------------------------------------------------------


def imported_slot(slot: Slot, now: int, retention: OutcomeRetention) -> Slot:
    """Return a whole id as it arrives: an active job comes as released, or ends if it was asked to cancel."""
    job = slot.current
    if job is None or job.run is None or job.run.lease is None:
        return slot
    if job.run.cancel_requested:
        return transitions.end(slot, job, Cancelled(), now, retention)
    return transitions.release(slot, job)


def numbers_in(slot: Slot) -> list[int]:
    """Return every seq, revision and fence in a slot: what is drawn after an import must be above them.

    The fence of a run counts even if the job arrives as released: its holder may still be there.
    """
    parts: list[Job | Successor | Outcome | None] = [slot.current, slot.successor, slot.outcome]
    drawn = [part.revision for part in parts if part is not None]
    drawn += [part.seq for part in (slot.current, slot.successor) if part is not None]
    if slot.current is not None and slot.current.run is not None:
        drawn.append(slot.current.run.fence)
    if slot.outcome is not None:
        drawn.append(slot.outcome.fence)
    return [0, *drawn, *(last for _, last in slot.dropped)]
