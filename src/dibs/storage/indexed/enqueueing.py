"""The verb enqueue, and the enqueue of follow-ups: jobs that the end of a run creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.events import NoteKind
from dibs.model.job import EMPTY, NewJob, Slot
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, FollowUp, OnConflict, Reject, Update
from dibs.model.results import EnqueueResult
from dibs.storage.indexed.ending import ask_to_end
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.queue_index import QueueIndex
from dibs.storage.indexed.records import RequestKey


def enqueue(index: Index, queue: str, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """Enqueue requests in order. A request whose request_key is remembered gets its first result again."""
    into = index.queue(queue)
    return [_enqueue_request(index, into, request) for request in requests]


def _enqueue_request(index: Index, queue: QueueIndex, request: EnqueueRequest) -> EnqueueResult:
    key = request.request_key
    if key is not None:
        known = queue.keys.get(key)
        if known is not None and index.now < known.expires_at:
            return EnqueueResult(
                known.status, known.found, known.first, known.revision, repeated=True, id=known.id
            )
    before = queue.slots.get(request.job.id, EMPTY) if request.want_outcome else EMPTY
    result = admit(index, queue, request.job, request.on_conflict, bounded=True)
    if key is not None and result.status not in rules.STOPPED:
        expires_at = index.now + queue.settings.request_key_age
        known = RequestKey(
            result.status,
            result.found,
            result.first,
            result.revision,
            expires_at,
            "" if result is rules.ABSENT else request.job.id,
        )
        queue.put_key(key, known)
    if request.want_outcome:
        return replace(result, outcome=transitions.unexpired(before.outcome, index.now))
    return result


def admit(
    index: Index, queue: QueueIndex, new: NewJob, on_conflict: OnConflict, *, bounded: bool = False
) -> EnqueueResult:
    """Enqueue one job. If its id is in use, `on_conflict` decides (contract 3, enqueue).

    `bounded` is whether the request obeys the setting `max_waiting`. A follow-up does not.
    """
    slot = queue.slots.get(new.id, EMPTY)
    rule = DEFAULT_UPDATE
    if on_conflict is not DEFAULT_UPDATE:  # rare
        unchanged = rules.decide_unchanged(slot, on_conflict, index.now)
        unchanged = unchanged or rules.decide_attributes(slot, new, on_conflict)
        if unchanged is not None:
            return unchanged
        rule = DEFAULT_UPDATE if isinstance(on_conflict, Reject) else on_conflict
    if bounded and queue.settings.max_waiting is not None:
        stopped = rules.decide_new(slot, queue.settings, queue.waiting)
        if stopped is not None:
            return stopped
    return _accept(index, queue, slot, new, rule)


def _accept(index: Index, queue: QueueIndex, slot: Slot, new: NewJob, rule: Update) -> EnqueueResult:
    if new.data.attributes:
        # Copy the mapping: the caller may change it after the enqueue.
        new = replace(new, data=replace(new.data, attributes=dict(new.data.attributes)))
    slot, result, into = rules.apply_update(slot, new, rule, index.now, index.next_number())
    queue.put(new.id, slot)
    if queue.settings.log_level == "all":
        kind = cast("NoteKind", result.status)  # each status of rules.apply_update is a NoteKind, too
        index.log_event(queue, events.note_event(kind, new.id, index.now, into))
    if rule.supersede and (run := rules.active_run(slot)) is not None:
        ask_to_end(index, queue, slot, *run)
    return result


def enqueue_follow_ups(index: Index, follow_ups: Sequence[FollowUp]) -> None:
    """Enqueue the follow-ups of a run, in the same atomic step as the end of that run."""
    for item in follow_ups:
        admit(index, index.queue(item.queue), item.job, item.on_conflict)
