"""The pages that a task reads of the ids or of the log of a queue. This module does not need pyspark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from attrs import frozen

from dibs.errors import StorageError
from dibs.model.events import LogEvent
from dibs.model.results import ExportRecord, State
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
    """Yield the ids of a partition, page by page."""
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
