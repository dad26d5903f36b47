"""Verbs that take jobs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.events import NoteKind
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, FollowUp, OnConflict, Reject, Update
from dibs.model.results import EnqueueResult, ExportRecord, ImportStatus
from dibs_sqlite.step import Queue, Step


def enqueue(step: Step, name: str, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """Take requests in, in order."""
    queue = step.queue(name)
    return [_take(step, queue, request) for request in requests]


def _take(step: Step, queue: Queue, request: EnqueueRequest) -> EnqueueResult:
    key = request.request_key
    if key is not None and (known := queue.remembered(key)) is not None:
        return known
    answer = admit(step, queue, request.job, request.on_conflict)
    if key is not None:
        queue.remember(key, answer)
    if request.want_outcome:
        return replace(answer, outcome=transitions.unexpired(queue.get(request.job.id).outcome, step.now))
    return answer


def admit(step: Step, queue: Queue, new: NewJob, how: OnConflict) -> EnqueueResult:
    """Let one job meet its id, as the table of contract 3 says."""
    before = queue.get(new.id)
    if isinstance(how, Reject):
        rejected = rules.reject(before, how, step.now)
        if rejected is not None:
            return rejected
        how = Update()
    after, answer, into = rules.accept(before, new, how, step.now, step.draw())
    queue.put(new.id, before, after)
    # What accept answers are kinds of events as well.
    queue.tell(events.note_event(cast("NoteKind", answer.status), new.id, step.now, into))
    return answer


def follow(step: Step, then: Sequence[FollowUp]) -> None:
    """Enqueue the follow-ups of an end, in its own transaction."""
    for item in then:
        admit(step, step.queue(item.queue), item.job, item.on_conflict)


def import_(step: Step, name: str, records: Sequence[ExportRecord]) -> list[ImportStatus]:
    """Take whole ids in."""
    queue = step.queue(name)
    return [_import_one(step, queue, record) for record in records]


def _import_one(step: Step, queue: Queue, record: ExportRecord) -> ImportStatus:
    here = queue.get(record.id)
    if here.current is not None or transitions.unexpired(here.outcome, step.now) is not None:
        return "exists"
    step.number = max(step.number, *rules.numbers_in(record.slot))
    after = rules.imported_slot(record.slot, step.now, queue.settings.retention)
    queue.put(record.id, here, after)
    return "imported"
