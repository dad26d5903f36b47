"""A simple model of one id: the possible answers of each call, and the state after it.

The linearizability check (linearize.py) applies the calls of an id to this model. The functions named after
an effect, such as `enqueued`, take a state and a call. They return each possible answer with the next state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from dibs_conformance.history.by_id import END_OF
from dibs_conformance.steps import RecordedOutcome, RecordedSlot, RecordedStep


class CurrentModel(NamedTuple):
    """The current job, waiting or active."""

    first: int
    revision: int
    payload: str
    attempts: int = 0
    #: Fence of the active run; 0 while the job waits.
    fence: int = 0
    lease: str = ""
    handed_off: bool = False
    cancel_requested: bool = False


class SuccessorModel(NamedTuple):
    """The successor: the job that waits for the end of the active run, made of all blocked updates."""

    first: int
    revision: int
    payload: str
    replaces: bool
    resets: bool
    #: False while it has only update-only requests. It then makes no job when the run ends.
    creates: bool = True


class SlotModel(NamedTuple):
    """The state of one id, with the newest fence and the newest revision it ever had."""

    current: CurrentModel | None = None
    successor: SuccessorModel | None = None
    outcome: RecordedOutcome | None = None
    newest_fence: int = 0
    newest_revision: int = 0
    #: The outcome that expired or was pruned last. Until it is pruned, it may answer a repeated end.
    expired: RecordedOutcome | None = None


EMPTY_SLOT = SlotModel()
#: An answer, and the state after it.
Answer = tuple[str, SlotModel]


def slots_after(slot: SlotModel, step: RecordedStep) -> Iterator[SlotModel]:
    """Yield every state possible after a step with its recorded answer, none if the answer is impossible.

    An outcome may expire or be pruned at any time.
    """
    for state in (slot, slot._replace(outcome=None, expired=slot.outcome)) if slot.outcome else (slot,):
        for status, after in possible_answers(state, step):
            if step.unknown or status == step.status:
                yield after


def possible_answers(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    """Yield the possible answers of a call in this state, each with the state after it."""
    if step.op in EFFECTS:
        yield EFFECTS[step.op](slot, step)
    elif step.op in CHOICES:
        yield from CHOICES[step.op](slot, step)
    elif step.op == "get":
        if step.read is not None and matches_read(slot, step.read):
            yield "read", slot
    else:
        yield from amended(slot, step)


def enqueued(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    if step.repeated:
        yield step.status, slot
    elif slot.current is None and not step.creates:
        yield "absent", slot
    else:
        yield from enqueued_once(slot, step)


def enqueued_once(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    """Yield the effects of a request without a known key, which may create a job."""
    current = slot.current
    if current is not None and (step.first, step.revision) == (current.first, current.revision):
        yield "duplicate", slot
    elif slot.outcome is not None and current is None and step.status in ("completed", "failed"):
        yield slot.outcome.kind, slot
    elif step.revision <= slot.newest_revision:
        return
    elif current is None:
        fresh = CurrentModel(step.first, step.revision, step.payload)
        if step.first == step.revision:
            yield "queued", slot._replace(current=fresh, newest_revision=step.revision)
    elif current.fence:
        successor = with_update(slot.successor, step)
        if step.first == successor.first:
            yield "blocked", slot._replace(successor=successor, newest_revision=step.revision)
    elif step.first == current.first:
        yield (
            "updated",
            slot._replace(current=current_with_update(current, step), newest_revision=step.revision),
        )


def with_update(successor: SuccessorModel | None, step: RecordedStep) -> SuccessorModel:
    if successor is None:
        return SuccessorModel(
            step.revision, step.revision, step.payload, step.replaces, step.resets, step.creates
        )
    first_that_creates = step.creates and not successor.creates
    payload = step.payload if step.replaces or first_that_creates else successor.payload
    return successor._replace(
        revision=step.revision,
        payload=payload,
        replaces=successor.replaces or step.replaces,
        resets=successor.resets or step.resets,
        creates=successor.creates or step.creates,
    )


def current_with_update(current: CurrentModel, step: RecordedStep) -> CurrentModel:
    return current._replace(
        revision=step.revision,
        payload=step.payload if step.replaces else current.payload,
        attempts=0 if step.resets else current.attempts,
    )


def forgotten(slot: SlotModel, _: RecordedStep) -> Answer:
    known = slot.current is not None or slot.outcome is not None
    empty = SlotModel(newest_fence=slot.newest_fence, newest_revision=slot.newest_revision)
    return ("forgotten" if known else "not_found"), empty


def imported(slot: SlotModel, step: RecordedStep) -> Answer:
    if slot.current is not None or slot.outcome is not None:
        return "exists", slot
    newest = max(slot.newest_revision, step.revision)
    job = CurrentModel(step.first, step.revision, step.payload)
    return "imported", slot._replace(current=job, newest_revision=newest)


def claimed(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    current = slot.current
    if current is None or current.fence or step.fence <= slot.newest_fence:
        return
    expected = (current.first, current.revision, current.payload, current.attempts + 1)
    if expected == (step.first, step.revision, step.payload, step.attempt):
        running = current._replace(attempts=step.attempt, fence=step.fence, lease=step.lease)
        yield "taken", slot._replace(current=running, newest_fence=step.fence)


def settled(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    if slot.current is not None and slot.current.fence == step.fence:
        yield settled_by_holder(slot, slot.current, step)
        return
    for outcome in (slot.outcome, slot.expired):
        yield late_answer(outcome, step), slot


def settled_by_holder(slot: SlotModel, current: CurrentModel, step: RecordedStep) -> Answer:
    end = END_OF.get(step.how)
    if end is not None:
        return "done", with_outcome(slot, end, step.result)
    if current.handed_off:
        return ("handed_off" if step.how == "hand_off" else "refused"), slot
    if current.cancel_requested:
        return "cancelled", with_outcome(slot, "cancelled")
    if step.how == "hand_off":
        return "handed_off", slot._replace(current=current._replace(handed_off=True, lease=""))
    return "returned", returned(slot, released=step.how == "release")


def late_answer(outcome: RecordedOutcome | None, step: RecordedStep) -> str:
    """Return the answer to a settlement of a run that is no longer active."""
    end = END_OF.get(step.how)
    if outcome is None or not outcome.fence or outcome.fence != step.fence:
        return "lost"
    if end is None:
        return "cancelled" if outcome.kind == "cancelled" else "lost"
    return "done" if outcome.kind == end else "lost"


def finished(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    for outcome in (slot.outcome, slot.expired):
        if outcome is not None and outcome.first <= step.revision <= outcome.revision:
            yield ("done" if outcome.kind == END_OF[step.how] else "lost"), slot
            if outcome is slot.outcome:
                return
    yield finished_without_outcome(slot, step)


def finished_without_outcome(slot: SlotModel, step: RecordedStep) -> Answer:
    current, end = slot.current, END_OF[step.how]
    if current is None:
        return "not_found", slot
    if not current.first <= step.revision <= current.revision:
        return "lost", slot
    if not current.handed_off:
        return "refused", slot
    return "done", with_outcome(slot, end, step.result)


def reaped_or_dropped(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    """Yield the effects of a reap or a drop.

    A drop names only a lease, so it may have no effect on this run yet.
    """
    current = slot.current
    if step.op == "drop":
        yield "dropped", slot
        if current is None or not current.fence or current.lease != step.lease:
            return
    elif current is None or current.handed_off or current.fence != step.fence:
        return
    if current.cancel_requested:
        yield ("cancelled" if step.op == "reap" else "dropped"), with_outcome(slot, "cancelled")
    elif step.op == "drop" or step.status == "released":
        yield step.status, returned(slot, released=True)
    else:
        yield "stalled", returned(slot, released=False)


def cancelled(slot: SlotModel, step: RecordedStep) -> Answer:
    current = slot.current
    if current is None:
        return (slot.outcome.kind if slot.outcome else "not_found"), slot
    if not current.fence:
        return "cancelled", with_outcome(slot, "cancelled")
    without_successor = slot._replace(successor=None)
    if not step.running:
        return ("cancelled" if slot.successor else "active"), without_successor
    if current.handed_off:
        return "cancelled", with_outcome(without_successor, "cancelled")
    return "requested", without_successor._replace(current=current._replace(cancel_requested=True))


def amended(slot: SlotModel, step: RecordedStep) -> Iterator[Answer]:
    """Yield the effects of an amend, or of a retry_failed that changed no data."""
    current = slot.current
    if step.op == "retry_failed" or current is None:
        yield step.status, slot
    elif not step.payload:
        yield "amended", slot
    elif current.fence:
        yield "active", slot
    else:
        yield "amended", slot._replace(current=current._replace(payload=step.payload))


def with_outcome(slot: SlotModel, kind: str, result: str = "") -> SlotModel:
    """Return the state after the current job ended.

    A successor that creates becomes the current job. The range of any other one joins that of the outcome.
    """
    current, successor, next_current = slot.current, slot.successor, None
    assert current is not None  # noqa: S101 - callers check this
    last = current.revision
    if successor is not None and successor.creates:
        next_current = CurrentModel(successor.first, successor.revision, successor.payload)
    elif successor is not None:
        last = successor.revision
    outcome = RecordedOutcome(kind, current.fence, current.first, last, result)
    return slot._replace(current=next_current, successor=None, outcome=outcome)


def returned(slot: SlotModel, *, released: bool) -> SlotModel:
    """Return the state after the run returned to waiting. The updates of the successor are applied to it."""
    current, successor = slot.current, slot.successor
    assert current is not None  # noqa: S101 - callers check this
    waiting = CurrentModel(current.first, current.revision, current.payload, current.attempts - released)
    if successor is not None:
        waiting = waiting._replace(
            revision=successor.revision,
            payload=successor.payload if successor.replaces else current.payload,
            attempts=0 if successor.resets else waiting.attempts,
        )
    return slot._replace(current=waiting, successor=None)


def matches_read(slot: SlotModel, read: RecordedSlot) -> bool:
    """Return whether a read of this state may give this result."""
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    actual = (
        (current.first, current.revision) if current else None,
        current.fence if current else 0,
        (successor.first, successor.revision) if successor else None,
        (outcome.kind, outcome.fence, outcome.first, outcome.revision) if outcome else None,
    )
    end = read.outcome
    expected = (
        read.current,
        read.fence,
        read.successor,
        (end.kind, end.fence, end.first, end.revision) if end else None,
    )
    result = end.result if end and end.kind == "completed" else ""
    return actual == expected and (not result or (outcome is not None and outcome.result == result))


#: The effect of each operation that has one possible answer in a state.
EFFECTS: dict[str, Callable[[SlotModel, RecordedStep], Answer]] = {
    "cancel": cancelled,
    "forget": forgotten,
    "import": imported,
}
#: The effects of the other operations that change a slot.
CHOICES: dict[str, Callable[[SlotModel, RecordedStep], Iterator[Answer]]] = {
    "enqueue": enqueued,
    "claim": claimed,
    "settle": settled,
    "finish": finished,
    "reap": reaped_or_dropped,
    "drop": reaped_or_dropped,
}
