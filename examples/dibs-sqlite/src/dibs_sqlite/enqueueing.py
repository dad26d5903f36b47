"""The methods enqueue and import_, and the enqueue of follow-ups: jobs that the end of a run creates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.events import NoteKind
from dibs.model.job import EMPTY, NewJob
from dibs.model.requests import EnqueueRequest, FollowUp, OnConflict, Reject, Update
from dibs.model.results import EnqueueResult, ExportRecord, ImportStatus
from dibs_sqlite.ending import ask_to_end
from dibs_sqlite.transaction import QueueRows, Transaction


def enqueue(tx: Transaction, name: str, requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """Enqueue requests in order. A request whose request_key is remembered gets its first result again."""
    queue = tx.queue(name)
    return [_enqueue(tx, queue, request) for request in requests]


def _enqueue(tx: Transaction, queue: QueueRows, request: EnqueueRequest) -> EnqueueResult:
    key = request.request_key
    if key is not None and (earlier := queue.result_for_key(key)) is not None:
        return earlier
    before = queue.get(request.job.id) if request.want_outcome else EMPTY
    result = admit(tx, queue, request.job, request.on_conflict, bounded=True)
    if key is not None and result.status not in rules.STOPPED:
        # A request that changed nothing has no job, so its remembered result names no id.
        queue.put_key(key, result if result.status == "absent" else replace(result, id=request.job.id))
    if request.want_outcome:
        return replace(result, outcome=transitions.unexpired(before.outcome, tx.now))
    return result


def admit(
    tx: Transaction, queue: QueueRows, new: NewJob, on_conflict: OnConflict, *, bounded: bool = False
) -> EnqueueResult:
    """Enqueue one job. If its id is in use, `on_conflict` decides (section 3 of the contract, enqueue).

    `bounded` says whether the job obeys `max_waiting`. A follow-up does not.
    """
    before = queue.get(new.id)
    unchanged = rules.decide_unchanged(before, on_conflict, tx.now)
    unchanged = unchanged or rules.decide_attributes(before, new, on_conflict)
    if unchanged is not None:
        return unchanged
    most = queue.settings.max_waiting
    if bounded and most is not None:
        stopped = rules.decide_new(before, queue.settings, queue.scalar("count_waiting", limit=most))
        if stopped is not None:
            return stopped
    if isinstance(on_conflict, Reject):
        on_conflict = Update()
    after, result, part = rules.apply_update(before, new, on_conflict, tx.now, tx.draw())
    queue.put(new.id, before, after)
    # Each status that `apply_update` returns is also a kind of event.
    queue.log_event(events.note_event(cast("NoteKind", result.status), new.id, tx.now, part))
    if on_conflict.supersede and (run := rules.active_run(after)) is not None:
        ask_to_end(tx, queue, after, *run)
    return result


def enqueue_follow_ups(tx: Transaction, then: Sequence[FollowUp]) -> None:
    """Enqueue the follow-ups of a run, in the same transaction as the end of that run."""
    for item in then:
        admit(tx, tx.queue(item.queue), item.job, item.on_conflict)


def import_(tx: Transaction, name: str, records: Sequence[ExportRecord]) -> list[ImportStatus]:
    """Restore exported ids. An id that has a job or an unexpired outcome here stays unchanged: `exists`."""
    queue = tx.queue(name)
    # First, because a run may draw a seq, which is above those of later records.
    tx.number = max([tx.number, *(number for one in records for number in rules.numbers_in(one.slot))])
    return [_import_one(tx, queue, record) for record in records]


def _import_one(tx: Transaction, queue: QueueRows, record: ExportRecord) -> ImportStatus:
    here = queue.get(record.id)
    if here.current is not None or transitions.unexpired(here.outcome, tx.now) is not None:
        return "exists"
    after = rules.imported_slot(record.slot, tx.now, queue.settings.retention, tx.draw)
    queue.put(record.id, here, after)
    queue.put_output(record.id, None)  # of an outcome that has expired here
    return "imported"
