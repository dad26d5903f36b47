"""Verbs that take jobs in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from dibs.model import events, transitions, verdicts
from dibs.model.answers import Enqueued, ImportStatus, Record
from dibs.model.events import NoteKind
from dibs.model.job import NewJob
from dibs.model.requests import OnConflict, Reject, Request, Then, Update
from dibs_sqlite.step import Queue, Step


def enqueue(step: Step, name: str, requests: Sequence[Request]) -> list[Enqueued]:
    """Take requests in, in order."""
    queue = step.queue(name)
    return [_take(step, queue, request) for request in requests]


def _take(step: Step, queue: Queue, request: Request) -> Enqueued:
    key = request.request_key
    if key is not None and (known := queue.remembered(key)) is not None:
        return known
    answer = admit(step, queue, request.job, request.on_conflict)
    if key is not None:
        queue.remember(key, answer)
    if request.want_outcome:
        return replace(answer, outcome=transitions.alive(queue.get(request.job.id).outcome, step.now))
    return answer


def admit(step: Step, queue: Queue, new: NewJob, how: OnConflict) -> Enqueued:
    """Let one job meet its id, as the table of contract 3 says."""
    before = queue.get(new.id)
    if isinstance(how, Reject):
        rejected = verdicts.rejected(before, how, step.now)
        if rejected is not None:
            return rejected
        how = Update()
    after, answer, into = verdicts.accept(before, new, how, step.now, step.draw())
    queue.put(new.id, before, after)
    # What accept answers are kinds of events as well.
    queue.tell(events.noted(cast("NoteKind", answer.status), new.id, step.now, into))
    return answer


def follow(step: Step, then: Sequence[Then]) -> None:
    """Enqueue the follow-ups of an end, in its own transaction."""
    for item in then:
        admit(step, step.queue(item.queue), item.job, item.on_conflict)


def import_(step: Step, name: str, records: Sequence[Record]) -> list[ImportStatus]:
    """Take whole ids in."""
    queue = step.queue(name)
    return [_import_one(step, queue, record) for record in records]


def _import_one(step: Step, queue: Queue, record: Record) -> ImportStatus:
    here = queue.get(record.id)
    if here.current is not None or transitions.alive(here.outcome, step.now) is not None:
        return "exists"
    step.number = max(step.number, *verdicts.numbers(record.slot))
    after = verdicts.arriving(record.slot, step.now, queue.settings.retention)
    queue.put(record.id, here, after)
    return "imported"
