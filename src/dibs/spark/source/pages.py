"""Pages of records, and the division of a table into parts that are read at the same time.

The storage itself returns the bounds of id ranges. For a log, offsets are opaque texts and a storage only
promises that they sort. So `interpolate_offset` treats two offsets as numbers and guesses one between them;
the bound is the offset of the event that the storage returns for this guess. A bad guess makes ranges of
different lengths, and a guess that the storage refuses makes one range. Both are correct: no event is lost
or read twice.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from attrs import frozen

from dibs.errors import Refused, StorageError
from dibs.model.check_arguments import MAX_PARTS
from dibs.model.events import LogEvent
from dibs.model.results import Counts, ExportRecord, State
from dibs.spark.connection import StorageConnection

#: Items of a page. Pages of large items have fewer: 1,000 payloads of 1 MiB would take 1 GiB.
PAGE: Final = 1000
PAGE_BYTES: Final = 16 * 1024 * 1024


class QueueRange(Protocol):
    """A part of the ids or of the log of one queue.

    Ids are given one by one in `ids`, or as a range of all ids or of the ids in one `state`. The range is
    behind `after` and up to `until`; for a log these are offsets.
    """

    @property
    def queue(self) -> str: ...
    @property
    def state(self) -> State | None: ...
    @property
    def ids(self) -> tuple[str, ...] | None: ...
    @property
    def after(self) -> str | None: ...
    @property
    def until(self) -> str | None: ...


@frozen
class QueuePart:
    """A QueueRange as a value."""

    queue: str
    state: State | None = None
    ids: tuple[str, ...] | None = None
    after: str | None = None
    until: str | None = None


def record_pages(connection: StorageConnection, part: QueueRange) -> Iterator[Sequence[ExportRecord]]:
    """Yield the export records, each an id with its slot, of a partition, page by page."""
    if part.ids is not None:
        for at in range(0, len(part.ids), PAGE):
            ids = part.ids[at : at + PAGE]
            slots = connection.run(connection.storage.get(part.queue, ids))
            yield [ExportRecord(id=id, slot=slot) for id, slot in zip(ids, slots, strict=True)]
        return
    after, limit = part.after, PAGE
    while True:
        records, after = _page(connection, part, after, limit)
        yield records
        if after is None:
            return
        limit = _next_limit(limit, records)


def _page(
    connection: StorageConnection, part: QueueRange, after: str | None, limit: int
) -> tuple[Sequence[ExportRecord], str | None]:
    if part.state is None:
        exported = connection.run(
            connection.storage.export(part.queue, after=after, until=part.until, limit=limit)
        )
        return exported.records, exported.after
    listed = connection.run(
        connection.storage.list(part.queue, part.state, after=after, until=part.until, limit=limit)
    )
    return [ExportRecord(id=id, slot=slot) for id, slot in listed.items], listed.after


def _next_limit(limit: int, records: Sequence[ExportRecord]) -> int:
    """Return the limit of the next page, so that its size stays near PAGE_BYTES."""
    size = 0
    # A plain loop, because it runs for each row: a sum over generators takes three times as long.
    for record in records:
        slot = record.slot
        for part in (slot.current, slot.successor, slot.outcome):
            if part is not None and part.data is not None:
                size += len(part.data.payload)
        if slot.outcome is not None and slot.outcome.result is not None:
            size += len(slot.outcome.result)
    return max(1, min(PAGE, limit * 2, limit * PAGE_BYTES // max(1, size)))


def log_pages(
    connection: StorageConnection, part: QueueRange, *, gaps: bool
) -> Iterator[Sequence[tuple[str, LogEvent]]]:
    """Yield pages of (offset, event) from the log of a partition, behind `after` and up to `until`.

    Raise StorageError if some of these events were trimmed, unless `gaps` is true.
    """
    after, until = part.after or None, part.until or ""
    while after is None or after < until:
        page = connection.run(connection.storage.events(part.queue, after=after, limit=PAGE))
        if page.fell_off and not gaps:
            raise StorageError(
                f"queue {part.queue!r}: the events directly after offset {after} were trimmed from the log. "
                "Keep the log longer (configure log_age, log_bytes), or set option on_gap=skip"
            )
        yield [(offset, event) for offset, event in page.events if offset <= until]
        if not page.events or page.offset == after:
            return
        after = page.offset


_DIGITS = frozenset(string.hexdigits)
#: Least number of ids in a partition. Starting a Spark task takes some 50 ms, about as long as reading this
#: many ids.
MIN_IDS_PER_PARTITION = 1000


def id_ranges(
    connection: StorageConnection, queue: str, state: State | None, parts: int
) -> list[tuple[str | None, str | None]]:
    """Return up to `parts` ranges (after, until) of all ids, or of the ids in a state.

    A range has at least about MIN_IDS_PER_PARTITION ids.
    """
    if parts > 1:
        counts = connection.run(connection.storage.counts([queue]))[queue]
        parts = min(parts, MAX_PARTS, _count_ids(counts, state) // MIN_IDS_PER_PARTITION)
    cuts = connection.run(connection.storage.split(queue, parts, state=state)) if parts > 1 else ()
    return list(zip((None, *cuts), (*cuts, None), strict=True))


def _count_ids(counts: Counts, state: State | None) -> int:
    if state is not None:
        return int(getattr(counts, state))
    # A waiting job with the outcome of an earlier run counts twice, which makes the ranges a little smaller.
    return counts.waiting + counts.active + counts.completed + counts.failed + counts.cancelled


def offset_ranges(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> list[tuple[str | None, str]]:
    """Return up to `parts` ranges (after, until) that together cover a log from `after` to `until`."""
    ends = [*sorted({*_range_bounds(connection, queue, after, until, parts)}), until]
    return list(zip([after, *ends[:-1]], ends, strict=True))


def _range_bounds(
    connection: StorageConnection, queue: str, after: str | None, until: str, parts: int
) -> Iterator[str]:
    if parts < 2 or (first := _first_offset_after(connection, queue, after)) is None:
        return
    for part in range(1, parts):
        guess = interpolate_offset(first, until, part / parts)
        found = None if guess is None else _first_offset_after(connection, queue, guess)
        if found is not None and first <= found < until:
            yield found


def _first_offset_after(connection: StorageConnection, queue: str, after: str | None) -> str | None:
    """Return the offset of the first event behind `after`.

    Return None if no such event exists or the storage refuses `after`.
    """
    try:
        page = connection.run(connection.storage.events(queue, after=after, limit=1))
    except Refused:
        return None
    return page.events[0][0] if page.events else None


def interpolate_offset(low: str, high: str, share: float) -> str | None:
    """Return a text at the given share of the way from one offset to another.

    Hexadecimal digits are interpolated and other characters are kept. Return None if the two offsets have
    different forms.
    """
    separators = [index for index, char in enumerate(low) if char not in _DIGITS]
    if len(low) != len(high) or any(low[index] != high[index] for index in separators):
        return None
    digits = [[char for char in text if char in _DIGITS] for text in (low, high)]
    if not digits[0] or len(digits[0]) != len(digits[1]):
        return None
    start, end = (int("".join(each), 16) for each in digits)
    guess = list(f"{start + int((end - start) * share):0{len(digits[0])}x}")
    for index in separators:
        guess.insert(index, low[index])
    return "".join(guess)
