"""Verbs that take jobs in."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from dibs.model import events, transitions
from dibs.model.answers import Enqueued, EnqueueStatus, Found, ImportStatus
from dibs.model.job import EMPTY, Job, NewJob, Outcome, Slot, Successor
from dibs.model.requests import Cancelled, OnConflict, Reject, Request, Then, Update
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import Key


def enqueue(index: Index, queue: str, requests: Sequence[Request]) -> list[Enqueued]:
    """Take requests in, in order."""
    into = index.queue(queue)
    return [_take(index, into, request) for request in requests]


def _take(index: Index, queue: QueueIndex, request: Request) -> Enqueued:
    key = request.request_key
    if key is not None:
        known = queue.keys.get(key)
        if known is not None and index.now < known.expires_at:
            return Enqueued(known.status, known.found, known.first, known.revision, repeated=True)
    answer = admit(index, queue, request.job, request.on_conflict)
    if key is not None:
        expires_at = index.now + queue.settings.request_key_age
        queue.put_key(key, Key(answer.status, answer.found, answer.first, answer.revision, expires_at))
    if request.want_outcome:
        kept = transitions.alive(queue.slots.get(request.job.id, EMPTY).outcome, index.now)
        return replace(answer, outcome=kept)
    return answer


def admit(index: Index, queue: QueueIndex, new: NewJob, how: OnConflict) -> Enqueued:
    """Let one job meet its id, as the table of contract 3 says."""
    slot = queue.slots.get(new.id, EMPTY)
    if isinstance(how, Reject):
        return _rejected(index, slot, how) or _accept(index, queue, slot, new, Update())
    return _accept(index, queue, slot, new, how)


def _accept(index: Index, queue: QueueIndex, slot: Slot, new: NewJob, how: Update) -> Enqueued:
    job, number, now = slot.current, index.draw(), index.now
    if new.data.attributes:
        # The mapping is the caller's and may change: what was accepted is kept as it was.
        new = replace(new, data=replace(new.data, attributes=dict(new.data.attributes)))
    status: EnqueueStatus
    found: Found
    into: Job | Successor | None
    if job is None:
        status, found = "queued", "nothing"
        slot = transitions.queue(slot, new, now, number)
        into = slot.current
    elif job.run is None:
        status, found = "updated", "waiting"
        slot = transitions.update(slot, job, new, how, now, number)
        into = slot.current
    else:
        status, found = "blocked", "active" if slot.successor is None else "active+blocked"
        slot = transitions.block(slot, new, how, now, number)
        into = slot.successor
    queue.put(new.id, slot)
    if queue.settings.log_level == "all":
        index.tell(queue, events.noted(status, new.id, now, into))
    return Enqueued(status, found, into.first if into else number, number)


def _rejected(index: Index, slot: Slot, how: Reject) -> Enqueued | None:
    job = slot.current
    if job is not None:
        found: Found = "waiting"
        if job.run is not None:
            found = "active" if slot.successor is None else "active+blocked"
        return Enqueued("duplicate", found, job.first, job.revision)
    outcome = transitions.alive(slot.outcome, index.now)
    if outcome is None:
        return None
    if outcome.kind == "completed" or (outcome.kind == "failed" and how.failed):
        return Enqueued(outcome.kind, "nothing", outcome.first, outcome.revision)
    return None


def follow(index: Index, then: Sequence[Then]) -> None:
    """Enqueue the follow-ups of an end, in its own atomic step."""
    for item in then:
        admit(index, index.queue(item.queue), item.job, item.on_conflict)


def import_one(index: Index, queue: QueueIndex, id: str, slot: Slot) -> ImportStatus:
    """Take a whole id in, unless it exists here."""
    here = queue.slots.get(id, EMPTY)
    if here.current is not None or transitions.alive(here.outcome, index.now):
        return "exists"
    # The fence of a run counts, too, even if the job arrives as released: its holder may still be there.
    index.number = max(index.number, *_numbers(slot))
    job = slot.current
    if job is not None and job.run is not None and job.run.lease is not None:
        slot = _released(queue, slot, job, index.now, asked=job.run.cancel_requested)
    queue.put(id, slot)
    return "imported"


def _released(queue: QueueIndex, slot: Slot, job: Job, now: int, *, asked: bool) -> Slot:
    """Take a run's job in without its run; one asked to cancel never comes back, here as elsewhere."""
    if asked:
        return transitions.end(slot, job, Cancelled(), now, queue.settings.retention)
    return transitions.release(slot, job)


def _numbers(slot: Slot) -> list[int]:
    parts: list[Job | Successor | Outcome | None] = [slot.current, slot.successor, slot.outcome]
    drawn = [part.revision for part in parts if part is not None]
    drawn += [part.seq for part in (slot.current, slot.successor) if part is not None]
    if slot.current is not None and slot.current.run is not None:
        drawn.append(slot.current.run.fence)
    if slot.outcome is not None:
        drawn.append(slot.outcome.fence)
    return [0, *drawn, *(last for _, last in slot.dropped)]
