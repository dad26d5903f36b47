"""The decisions of contract 3: the result of each storage operation for an id in a given state.

The functions read a slot, which holds everything about one id. Most return only the result; the caller then
changes the slot with dibs.model.transitions. A storage that reads and writes whole slots needs only these two
modules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from msgspec import UNSET, Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model import transitions
from dibs.model.check_arguments import check_cost, check_settle_action, check_share_count
from dibs.model.check_values import size_of_attributes
from dibs.model.job import EMPTY, ActiveRun, Job, NewJob, Outcome, OutcomeRetention, Slot, Successor
from dibs.model.limits import LIMITS, Limits
from dibs.model.plain_values import to_plain
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    Fail,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    Settings,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
    WhenFull,
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
from dibs.model.transitions import unexpired

DONE: Final = SettleResult("done")
RETURNED: Final = SettleResult("returned")
LOST: Final = SettleResult("lost")
#: The result of an update-only request for an id without a live job. No range holds the request.
ABSENT: Final = EnqueueResult("absent", "nothing", 0, 0)
#: The result of a request that `max_waiting` stops, by the setting `when_full`. No range holds the request.
FULL: Final[dict[WhenFull, EnqueueResult]] = {
    "refuse": EnqueueResult("full", "nothing", 0, 0),
    "drop_new": EnqueueResult("dropped", "nothing", 0, 0),
}
#: The statuses of requests that changed nothing and may be accepted later: those that `max_waiting` stopped,
#: and `full` for attributes that are too large. A queue forgets their request keys.
STOPPED: Final = frozenset(result.status for result in FULL.values())
CANCELLED: Final = SettleResult("cancelled")
#: The size in bytes beyond which an update-only request merges no attributes.
MOST_ATTRIBUTES: Final = LIMITS.attributes
#: The reason of the result `refused` for a settlement that would return a handed-off run to the queue.
REASON_CAN_ONLY_END: Final = (
    "the run was handed off and can only end: settle it as Complete, Fail or Cancelled"
)
#: The fields of a JobPatch that can change a waiting job, but not an active one.
FIELDS_WHILE_WAITING: Final = frozenset({"payload", "run_at", "delay", "priority", "lease"})
#: The fields of a JobPatch that can change an outcome.
FIELDS_OF_OUTCOME: Final = frozenset({"attributes", "retention"})


# -- visible state ------------------------------------------------------------------------------------


def hide_expired_outcome(slot: Slot, now: int) -> Slot:
    """Return the slot as readers must see it: without its outcome, if the outcome has expired."""
    if slot.outcome is None or transitions.unexpired(slot.outcome, now) is not None:
        return slot
    return EMPTY if slot.current is None else replace(slot, outcome=None)


def is_in_state(slot: Slot, state: State, now: int) -> bool:
    """Return whether a slot is in a state of Storage.list. The slot must come from `hide_expired_outcome`."""
    return _IS_IN_STATE[state](slot, now)


def _is_waiting(slot: Slot, now: int) -> bool:  # noqa: ARG001 - all functions in _IS_IN_STATE take the same arguments
    return slot.current is not None and slot.current.run is None


def _is_scheduled(slot: Slot, now: int) -> bool:
    return slot.current is not None and slot.current.run is None and slot.current.run_at > now


def _is_active(slot: Slot, now: int) -> bool:  # noqa: ARG001
    return slot.current is not None and slot.current.run is not None


def _is_handed_off(slot: Slot, now: int) -> bool:  # noqa: ARG001
    return slot.current is not None and slot.current.run is not None and slot.current.run.lease is None


_IS_IN_STATE: Final[dict[State, Callable[[Slot, int], bool]]] = {
    "waiting": _is_waiting,
    "scheduled": _is_scheduled,
    "active": _is_active,
    "handed_off": _is_handed_off,
    "blocked": lambda slot, now: slot.successor is not None,  # noqa: ARG005
    "completed": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "completed",  # noqa: ARG005
    "failed": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "failed",  # noqa: ARG005
    "cancelled": lambda slot, now: slot.outcome is not None and slot.outcome.kind == "cancelled",  # noqa: ARG005
}


# -- enqueue -----------------------------------------------------------------------------------------


def decide_unchanged(slot: Slot, rule: OnConflict, now: int) -> EnqueueResult | None:
    """Return the result of an enqueue that changes nothing, or None if the caller must enqueue the job.

    Reject leaves a known id unchanged, and an update-only request an id without a live job.
    """
    if isinstance(rule, Reject):
        return _decide_reject(slot, rule, now)
    return None if rule.create or slot.current is not None else ABSENT


def decide_attributes(slot: Slot, new: NewJob, rule: OnConflict) -> EnqueueResult | None:
    """Return the result of an update-only request whose attributes do not fit into the live job of its id.

    Return None if the caller must apply the request. The state that was found tells this `full` from that of
    `max_waiting`, which has found nothing.
    """
    if isinstance(rule, Reject) or rule.create or not new.data.attributes or slot.current is None:
        return None
    for part in (slot.current, slot.successor):
        if (
            part is not None
            and size_of_attributes({**part.data.attributes, **new.data.attributes}) > MOST_ATTRIBUTES
        ):
            found: FoundState = "waiting" if slot.current.run is None else _active_state(slot)
            return EnqueueResult("full", found, 0, 0)
    return None


def decide_new(slot: Slot, settings: Settings, waiting: int) -> EnqueueResult | None:
    """Return the result of a request that `max_waiting` stops; None if the caller must enqueue its job.

    `waiting` is the number of waiting jobs of the queue. The caller has asked `decide_unchanged` before. Only
    an enqueue asks: a job that comes back, and a follow-up, may exceed the bound.
    """
    if slot.current is not None or settings.max_waiting is None or waiting < settings.max_waiting:
        return None
    return FULL[settings.when_full]


def _decide_reject(slot: Slot, rule: Reject, now: int) -> EnqueueResult | None:
    job = slot.current
    if job is not None:
        if job.run is None:
            return EnqueueResult("duplicate", "waiting", job.first, job.revision)
        return EnqueueResult("duplicate", _active_state(slot), job.first, job.revision)
    outcome = transitions.unexpired(slot.outcome, now)
    if outcome is None:
        return None
    if outcome.kind == "completed" or (outcome.kind == "failed" and rule.failed):
        return EnqueueResult(outcome.kind, "nothing", outcome.first, outcome.revision)
    return None


def apply_update(
    slot: Slot, new: NewJob, rule: Update, now: int, number: int
) -> tuple[Slot, EnqueueResult, Job | Successor | None]:
    """Enqueue a job with Update. Return the next slot, the result, and the part that the job went into.

    The part is the current or the successor of the next slot. `number` is the revision of the enqueue. The
    caller has asked `decide_unchanged` and `decide_attributes` before, so an update-only request finds a live
    job with room for its attributes.
    """
    if not rule.create and new.data.attributes:
        slot = transitions.amend(slot, JobPatch(attributes=new.data.attributes), now)
    job = slot.current
    if job is None:
        slot = transitions.enqueue_first(slot, new, now, number)
        return slot, EnqueueResult("queued", "nothing", number, number), slot.current
    if job.run is None:
        slot = transitions.update(slot, job, new, rule, now, number)
        return slot, EnqueueResult("updated", "waiting", job.first, number), slot.current
    found = _active_state(slot)
    slot = transitions.block(slot, new, rule, now, number)
    into = slot.successor
    return slot, EnqueueResult("blocked", found, into.first if into else number, number), into


def active_run(slot: Slot) -> tuple[Job, ActiveRun] | None:
    """Return the current of a slot and its run; None if the id has no active run.

    A storage asks it after an update with `supersede`, and asks this run to end in the same step.
    """
    job = slot.current
    return None if job is None or job.run is None else (job, job.run)


def _active_state(slot: Slot) -> FoundState:
    return "active" if slot.successor is None else "active+blocked"


# -- settle, finish, reap ----------------------------------------------------------------------------


def decide_settle(slot: Slot, settlement: Settlement, limits: Limits) -> SettleResult | SettleAction:
    """Return the action to apply, or the result of a settlement that leaves the id unchanged.

    - A fence other than that of the active run gets `lost`; a repeated settlement gets its first result.
    - An action or a cost that breaks a limit gets `refused`.
    - If a cancellation was requested, Cancelled replaces RetryLater, Release and HandOff.

    After the caller has applied an action, `settle_result` returns its result.
    """
    run = slot.current.run if slot.current is not None else None
    if run is None or run.fence != settlement.fence:
        return settle_from_outcome(slot.outcome, settlement)
    action = settlement.action
    try:
        check_settle_action(action, limits)
        if settlement.cost is not None:
            check_cost(settlement.cost)
    except Refused as error:
        return SettleResult("refused", str(error))
    if isinstance(action, (Complete, Fail, Cancelled)):
        return action
    if run.lease is None:
        if isinstance(action, HandOff):
            return settle_result(slot, action, action)
        return SettleResult("refused", REASON_CAN_ONLY_END)
    return Cancelled() if run.cancel_requested else action


def settle_from_outcome(outcome: Outcome | None, settlement: Settlement) -> SettleResult:
    """Return the result of a settlement whose run is no longer active.

    If the outcome has the fence of the settlement, the settlement may be a repeat, and gets the same result
    as the first time. Otherwise it gets `lost`.
    """
    if outcome is None or outcome.fence != settlement.fence or outcome.fence == 0:
        return LOST
    if isinstance(settlement.action, (Complete, Fail, Cancelled)):
        return DONE if transitions.outcome_kind(settlement.action) == outcome.kind else LOST
    return CANCELLED if outcome.kind == "cancelled" else LOST


def settle_result(slot: Slot, asked: SettleAction, applied: SettleAction) -> SettleResult:
    """Return the result of a settlement with the action `asked`, after the storage applied `applied`.

    The two differ if a cancellation was requested and the settlement asked for a return.
    """
    if isinstance(applied, Complete):
        return DONE
    if isinstance(applied, HandOff):
        return SettleResult("handed_off", revision=slot.current.revision if slot.current is not None else 0)
    if isinstance(applied, (RetryLater, Release)):
        return RETURNED
    return CANCELLED if isinstance(asked, (RetryLater, Release, HandOff)) else DONE


def decide_action_without_lease(job: Job, *, stalled: bool) -> tuple[SettleAction, ReapedKind]:
    """Return the action for a run that loses its lease.

    `stalled` is True if the lease expired, and False if its holder dropped it. Only a stall is counted.
    """
    if job.run is not None and job.run.cancel_requested:
        return Cancelled(), "cancelled"
    return (RetryLater(cause="stall"), "stalled") if stalled else (Release(), "released")


def decide_finish(slot: Slot, end: End, revision: int) -> FinishStatus | None:
    """Return the result of a `finish` that leaves the id unchanged; None if the caller must end the run."""
    outcome, job = slot.outcome, slot.current
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return "done" if transitions.outcome_kind(end) == outcome.kind else "lost"
    if job is None:
        return "not_found"
    if not job.first <= revision <= job.revision:
        return "lost"
    return "refused" if job.run is None or job.run.lease is not None else None


# -- by id -------------------------------------------------------------------------------------------


def decide_cancel(slot: Slot, now: int, *, running: bool) -> CancelStatus:
    """Return the result of a `cancel`.

    For `cancelled` and `requested` the caller must change the slot:

    - A waiting job ends as cancelled, and a successor is dropped.
    - With `running`, a run under a lease gets `cancel_requested`, and a handed-off run ends.
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


def decide_amend(slot: Slot, patch: JobPatch, now: int) -> AmendStatus:
    """Return the result of an `amend`. The caller applies the patch only for `amended`."""
    fields = {name for name in patch.__struct_fields__ if getattr(patch, name) is not UNSET}
    if slot.current is None:
        kept = transitions.unexpired(slot.outcome, now) is not None
        return "amended" if kept and fields and fields <= FIELDS_OF_OUTCOME else "not_found"
    return "active" if slot.current.run is not None and fields & FIELDS_WHILE_WAITING else "amended"


def changed_settings(before: Settings, patch: SettingsPatch) -> Settings:
    """Return the settings of a queue after a patch. Raise Refused if their shares are too many.

    The patch passed dibs.storage.checks.check_configure. Its shares are merged by key.
    """
    named = {name: getattr(patch, name) for name in patch.__struct_fields__}
    changes = {name: value for name, value in named.items() if value is not UNSET}
    if patch.shares is not UNSET:
        merged = {**before.shares, **{to_plain(key): share for key, share in patch.shares.items()}}
        changes["shares"] = {key: to_plain(share) for key, share in merged.items() if share is not None}
        check_share_count(len(changes["shares"]))
    return replace(before, **changes)


def changed_shares(before: Settings, after: Settings) -> list[str]:
    """Return the keys whose share a change of settings changed. Each begins a new turn in its place."""
    keys = {**before.shares, **after.shares}
    return [key for key in keys if before.shares.get(key, 1) != after.shares.get(key, 1)]


def decide_retry_failed(slot: Slot, now: int) -> RetryFailedStatus:
    """Return the result of a `retry_failed`. The caller enqueues the job again only for `queued`."""
    if slot.current is not None:
        return "live"
    outcome = transitions.unexpired(slot.outcome, now)
    if outcome is None:
        return "not_found"
    if outcome.kind != "failed":
        return outcome.kind
    return "not_kept" if outcome.data is None else "queued"


# -- import ------------------------------------------------------------------------------------------


def imported_slot(slot: Slot, now: int, retention: OutcomeRetention, draw: Callable[[], int]) -> Slot:
    """Return the slot to store for an imported id.

    The lease of an active job does not exist in the new storage. So the job waits again, or ends as cancelled
    if that was requested. `draw` returns a new number, above those of the slot.
    """
    job = slot.current
    if job is None or job.run is None or job.run.lease is None:
        return slot
    if job.run.cancel_requested:
        return transitions.end(slot, job, Cancelled(), now, retention)
    return transitions.release_by(slot, job, Release(), now, draw)


def numbers_in(slot: Slot) -> list[int]:
    """Return every seq, revision and fence in an imported slot. The next numbers are drawn above them.

    The fence of a run counts although the import releases the job: its holder may still be running.
    """
    parts: list[Job | Successor | Outcome | None] = [slot.current, slot.successor, slot.outcome]
    drawn = [part.revision for part in parts if part is not None]
    drawn += [part.seq for part in (slot.current, slot.successor) if part is not None]
    if slot.current is not None and slot.current.run is not None:
        drawn.append(slot.current.run.fence)
    if slot.outcome is not None:
        drawn.append(slot.outcome.fence)
    return [0, *drawn, *(last for _, last in slot.dropped)]


TicketStateKind = Literal["pending", "completed", "failed", "cancelled", "not_kept"]


class TicketState(Struct, frozen=True, gc=False):
    """The state of the enqueue that a `Ticket` waits for."""

    #: `pending`, the kind of its end, or `not_kept` for an end without a kept outcome.
    kind: TicketStateKind
    #: The kept outcome of the enqueue; None if it is pending, dropped or not kept.
    outcome: Outcome | None = None
    #: For `not_kept`: "ended" if a later run of the id has a kept outcome, "live" if a later enqueue of the
    #: id waits or runs, None if the storage keeps nothing later.
    later: Literal["ended", "live"] | None = None


def ticket_state(slot: Slot, revision: int, now: int = 0) -> TicketState:
    """Return the state of the enqueue with this revision, from the slot of its id.

    `now` is the time of the storage in ms. For a slot from Storage.get, 0 is correct, because such a slot has
    no expired outcome. The kind is `not_kept` if the enqueue has ended and no outcome covers its revision.
    """
    if any(first <= revision <= last for first, last in slot.dropped):
        return TicketState("cancelled")
    for live in (slot.current, slot.successor):
        if live is not None and live.first <= revision <= live.revision:
            return TicketState("pending")
    outcome = unexpired(slot.outcome, now)
    if outcome is not None and outcome.first <= revision <= outcome.revision:
        return TicketState(outcome.kind, outcome)
    if outcome is not None and outcome.first > revision:
        return TicketState("not_kept", later="ended")
    return TicketState("not_kept", later=None if slot.current is None else "live")
