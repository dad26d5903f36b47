"""Verbs that take jobs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.events import NoteKind
from dibs.model.job import EMPTY, NewJob, Slot
from dibs.model.requests import EnqueueRequest, FollowUp, OnConflict, Reject, Update
from dibs.model.results import EnqueueResult
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import RequestKey


def enqueue(index: Index, queue: str, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """Take requests in, in order."""
    into = index.queue(queue)
    return [_take(index, into, request) for request in requests]


def _take(index: Index, queue: QueueIndex, request: EnqueueRequest) -> EnqueueResult:
    key = request.request_key
    if key is not None:
        known = queue.keys.get(key)
        if known is not None and index.now < known.expires_at:
            return EnqueueResult(known.status, known.found, known.first, known.revision, repeated=True)
    answer = admit(index, queue, request.job, request.on_conflict)
    if key is not None:
        expires_at = index.now + queue.settings.request_key_age
        queue.put_key(key, RequestKey(answer.status, answer.found, answer.first, answer.revision, expires_at))
    if request.want_outcome:
        kept = transitions.unexpired(queue.slots.get(request.job.id, EMPTY).outcome, index.now)
        return replace(answer, outcome=kept)
    return answer


def admit(index: Index, queue: QueueIndex, new: NewJob, how: OnConflict) -> EnqueueResult:
    """Let one job meet its id, as the table of contract 3 says."""
    slot = queue.slots.get(new.id, EMPTY)
    if isinstance(how, Reject):
        return rules.reject(slot, how, index.now) or _accept(index, queue, slot, new, Update())
    return _accept(index, queue, slot, new, how)


def _accept(index: Index, queue: QueueIndex, slot: Slot, new: NewJob, how: Update) -> EnqueueResult:
    if new.data.attributes:
        # The mapping is the caller's and may change: what was accepted is kept as it was.
        new = replace(new, data=replace(new.data, attributes=dict(new.data.attributes)))
    slot, answer, into = rules.accept(slot, new, how, index.now, index.next_number())
    queue.put(new.id, slot)
    if queue.settings.log_level == "all":
        kind = cast("NoteKind", answer.status)  # what accept answers are kinds of events as well
        index.log_event(queue, events.note_event(kind, new.id, index.now, into))
    return answer


def follow(index: Index, then: Sequence[FollowUp]) -> None:
    """Enqueue the follow-ups of an end, in its own atomic step."""
    for item in then:
        admit(index, index.queue(item.queue), item.job, item.on_conflict)
