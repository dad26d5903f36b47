"""The methods that change given ids: cancel, amend, retry_failed, forget."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.job import EMPTY, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, JobPatch
from dibs.model.results import AmendStatus, CancelStatus, RetryFailedStatus
from dibs_sqlite.ending import ask_to_end, store_end
from dibs_sqlite.transaction import QueueRows, Transaction


def cancel(tx: Transaction, name: str, ids: Sequence[str], running: bool) -> list[CancelStatus]:  # noqa: FBT001
    """Cancel waiting jobs and successors of active jobs. With `running`, also ask active runs to cancel."""
    queue = tx.queue(name)
    return [_cancel(tx, queue, id, running=running) for id in ids]


def _cancel(tx: Transaction, queue: QueueRows, id: str, *, running: bool) -> CancelStatus:
    slot = queue.get(id)
    job, verdict = slot.current, rules.decide_cancel(slot, tx.now, running=running)
    if job is None or verdict == "active":
        return verdict
    slot = _drop_successor(tx, queue, id, slot)
    if job.run is None:
        store_end(tx, queue, slot, job, Cancelled())
    elif running:
        ask_to_end(tx, queue, slot, job, job.run)
    return verdict


def _drop_successor(tx: Transaction, queue: QueueRows, id: str, slot: Slot) -> Slot:
    successor = slot.successor
    if successor is None:
        return slot
    after = transitions.drop_successor(slot, successor, tx.now)
    queue.put(id, slot, after)
    queue.log_event(events.dropped_event(id, successor, tx.now))
    return after


def amend(tx: Transaction, name: str, id: str, patch: JobPatch, limits: Limits) -> AmendStatus:
    """Apply a patch as a whole or not at all. Raise Refused if the merged attributes are too large."""
    queue = tx.queue(name)
    slot = queue.get(id)
    verdict = rules.decide_amend(slot, patch, tx.now)
    if verdict != "amended":
        return verdict
    after = transitions.amend(slot, patch, tx.now)
    if patch.attributes is not UNSET:
        _check_attributes(after, limits)
    queue.put(id, slot, after)
    queue.log_event(events.note_event("amended", id, tx.now, after.current))
    return verdict


def _check_attributes(slot: Slot, limits: Limits) -> None:
    """Raise Refused if the merged attributes of a part are too large."""
    for part in (slot.current, slot.successor):
        if part is not None:
            check_attributes(part.data.attributes, limits)
    if slot.current is None and slot.outcome is not None:
        check_attributes(slot.outcome.kept_attributes, limits)


def retry_failed(tx: Transaction, name: str, ids: Sequence[str], delay: int) -> list[RetryFailedStatus]:
    """Enqueue failed jobs again, with the payload and options that their outcomes kept."""
    queue = tx.queue(name)
    return [_retry_failed(tx, queue, id, delay) for id in ids]


def _retry_failed(tx: Transaction, queue: QueueRows, id: str, delay: int) -> RetryFailedStatus:
    slot = queue.get(id)
    verdict, outcome = rules.decide_retry_failed(slot, tx.now), slot.outcome
    if verdict != "queued" or outcome is None or outcome.data is None:
        return verdict
    after = transitions.retry_failed(slot, outcome, id, outcome.data, tx.now, tx.draw(), delay=delay)
    queue.put(id, slot, after)
    queue.change_output(id, lambda known: replace(known, begin=0))
    queue.log_event(events.note_event("queued", id, tx.now, after.current))
    return verdict


def forget(tx: Transaction, name: str, ids: Sequence[str]) -> list[bool]:
    """Remove the job, successor and outcome of each id. Return for each id whether it had one of them.

    The storage need not remember the last fence of the id, because each new number is above every earlier
    one.
    """
    queue = tx.queue(name)
    return [_forget(tx, queue, id) for id in ids]


def _forget(tx: Transaction, queue: QueueRows, id: str) -> bool:
    slot = queue.get(id)
    visible = rules.hide_expired_outcome(slot, tx.now)
    if slot is not EMPTY:
        queue.put(id, slot, EMPTY)
        queue.put_output(id, None)
    if visible is EMPTY:
        return False
    queue.log_event(events.note_event("forgotten", id, tx.now))
    return True
