"""The verbs that only read: get, list, counts, queues, split, export and events, which also reads output."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from dibs.model import rules, transitions
from dibs.model.job import EMPTY, Slot
from dibs.model.results import Counts, EventPage, ExportPage, ExportRecord, ListPage, QueueInfo, State
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.output import page
from dibs.storage.indexed.queue_index import QueueIndex

#: The most ids that a page of a listing reads. A search for a few failed jobs among 1,000,000 waiting ones
#: would keep the process busy for seconds.
MOST_READ: Final = 20_000
#: With more scheduled entries than this, `counts` estimates the scheduled jobs instead of counting them.
COUNTED: Final = 20_000


def get(index: Index, queue: str, ids: Sequence[str]) -> list[Slot]:
    """Return the slot of each id. An expired outcome is absent, even if prune has not removed it."""
    source = index.find_queue(queue)
    return [rules.hide_expired_outcome(source.slots.get(id, EMPTY), index.now) for id in ids]


def list_(
    index: Index, queue: str, state: State, after: str | None, until: str | None, limit: int
) -> ListPage:
    """Return a page of the ids in a state. The cursor is the last id of the page, or the last that was read.

    A page reads at most MOST_READ ids, so it may be short.
    """
    source, now = index.find_queue(queue), index.now
    page: list[tuple[str, Slot]] = []
    if _is_empty(source, state):
        return ListPage(items=(), after=None)
    last = after
    for read, id in enumerate(source.listing.ids_after(after, until)):
        if read == MOST_READ:
            return ListPage(items=tuple(page), after=last)
        last = id
        slot = rules.hide_expired_outcome(source.slots[id], now)
        if not rules.is_in_state(slot, state, now):
            continue
        if len(page) == limit:
            return ListPage(items=tuple(page), after=page[-1][0])
        page.append((id, slot))
    return ListPage(items=tuple(page), after=None)


def _is_empty(queue: QueueIndex, state: State) -> bool:
    """Return whether no id of a queue is in a state. False does not say that one is."""
    if state in ("completed", "failed", "cancelled"):
        return not queue.outcomes.counts[state]
    if state in ("waiting", "scheduled"):
        return not queue.waiting
    return state == "active" and not queue.active


def counts(index: Index, queues: Iterable[str]) -> dict[str, Counts]:
    return {name: _count_queue(index.find_queue(name)) for name in queues}


def _count_queue(queue: QueueIndex) -> Counts:
    approximate = len(queue.scheduled) > COUNTED
    return Counts(
        waiting=queue.waiting,
        scheduled=min(len(queue.scheduled), queue.waiting) if approximate else queue.count_scheduled(),
        retrying=queue.retrying,
        active=queue.active,
        handed_off=queue.handed_off,
        blocked=queue.blocked,
        completed=queue.outcomes.counts["completed"],
        failed=queue.outcomes.counts["failed"],
        cancelled=queue.outcomes.counts["cancelled"],
        approximate=approximate,
    )


def queues(index: Index) -> list[QueueInfo]:
    """Return the queues that were ever changed, sorted by name."""
    return [QueueInfo(name, known.settings) for name, known in sorted(index.queues.items()) if known.used]


def split(index: Index, queue: str, parts: int, state: State | None) -> list[str]:
    """Divide a listing of `state`, or an export (None), into equal parts.

    Return the last id of each part except the last part. The parts of an export may also contain ids with
    expired outcomes, which the export leaves out.
    """
    source, now = index.find_queue(queue), index.now
    ids = [
        id
        for id in source.listing.ids_after(None)
        if state is None or rules.is_in_state(rules.hide_expired_outcome(source.slots[id], now), state, now)
    ]
    bounds = (ids[len(ids) * part // parts - 1] for part in range(1, parts) if len(ids) * part >= parts)
    return list(dict.fromkeys(bounds))


def export(index: Index, queue: str, after: str | None, until: str | None, limit: int) -> ExportPage:
    """Return a page of ids, each with job, successor and outcome. The cursor is the last id of the page."""
    source = index.find_queue(queue)
    records: list[ExportRecord] = []
    for id in source.listing.ids_after(after, until):
        slot = rules.hide_expired_outcome(source.slots[id], index.now)
        if slot is EMPTY:
            continue
        if len(records) == limit:
            return ExportPage(records=tuple(records), settings=source.settings, after=records[-1].id)
        records.append(ExportRecord(id=id, slot=slot))
    return ExportPage(records=tuple(records), settings=source.settings, after=None)


def output(index: Index, queue: str, id: str, after: str | None, limit: int) -> EventPage:
    """Return a page of the output of an id, without that of an expired outcome."""
    source = index.find_queue(queue)
    outcome = transitions.unexpired(source.slots.get(id, EMPTY).outcome, index.now)
    return page(source.outputs.get(id), after, limit, with_outcome=outcome is not None)


def events(index: Index, queue: str, after: str | None, limit: int) -> EventPage:
    return index.find_queue(queue).log.page(after, limit)
