"""The batch reader: who plans a read and who does it, page by page.

Whole ids are read by `export`, so that each appears once however it moves meanwhile; a filter that names
one state reads the listing of that state instead. The log is read up to where it ended at planning, so a
task that is tried again reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dibs.errors import Refused, StorageError
from dibs.model.events import LogEvent
from dibs.model.results import ExportRecord, State
from dibs.spark.door import Door
from dibs.spark.schemas import struct_type
from dibs.spark.source.narrowing import Narrowing, narrowed
from dibs.spark.source.options import ReadOptions
from dibs.spark.source.rows import FROM_EVENTS, FROM_RECORDS, Row, batch_of
from dibs.spark.source.splitting import parts_of_ids, stretches
from dibs.storage.protocol import LATEST

#: Items of a page, fewer where they are large: a page of payloads of 1 MiB should not be 1 GiB.
PAGE: Final = 1000
PAGE_BYTES: Final = 16 * 1024 * 1024

#: The column that says an id's state, and what it may say.
STATES: Final[dict[str, tuple[str, tuple[State, ...]]]] = {
    "jobs": ("state", ("waiting", "active", "blocked")),
    "outcomes": ("kind", ("completed", "failed", "cancelled")),
}


class Part(ds.InputPartition):
    """What one task reads of one queue: some ids, a part of all or of those in one state, or of the log."""

    def __init__(
        self,
        queue: str,
        *,
        state: State | None = None,
        ids: tuple[str, ...] | None = None,
        after: str | None = None,
        until: str | None = None,
    ) -> None:
        super().__init__(queue)
        self.queue = queue
        self.state = state
        self.ids = ids
        self.after = after
        self.until = until


class Reader(ds.DataSourceReader):
    """Reads one table of one place."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked(options.table, schema)
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Plan the read: of each queue one part, or several where there is much and it can be cut."""
        with Door(self._options.url) as door:
            queues = self._options.queues or tuple(info.name for info in door.ask(door.storage.queues()))
            named = self._narrowing.values("queue")
            wanted = [queue for queue in queues if named is None or queue in named]
            return [part for queue in wanted for part in self._parts(door, queue, alone=len(wanted) == 1)]

    def _parts(self, door: Door, queue: str, *, alone: bool) -> Iterator[Part]:
        if self._options.table in FROM_EVENTS:
            end = self._options.until or door.ask(door.storage.events(queue, after=LATEST, limit=1)).offset
            after, until = self._options.after, end
            if alone:
                # An offset means something in one log only.
                after = max(after or "", self._narrowing.after() or "") or None
                until = min(end, self._narrowing.until() or end)
            if end:
                parts = stretches(door, queue, after, until, self._options.partitions)
                yield from (Part(queue, after=begin, until=stop) for begin, stop in parts)
            return
        ids, states = self._narrowing.values("id"), self._states()
        if ids is not None:
            yield Part(queue, ids=ids)
        else:
            for state in states if states is not None and len(states) <= 1 else (None,):
                cut = parts_of_ids(door, queue, state, self._options.partitions)
                yield from (Part(queue, state=state, after=begin, until=stop) for begin, stop in cut)

    def _states(self) -> list[State] | None:
        column, words = STATES[self._options.table]
        named = self._narrowing.values(column)
        return None if named is None else [word for word in words if word in named]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, a batch for each page."""
        part = cast("Part", partition)
        if part.value is None:
            # What Spark makes when there is nothing to read.
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with Door(self._options.url) as door:
            for page in self._pages(door, part):
                if rows := self._narrowing.kept(page):
                    yield batch_of(self._options.table, rows, schema)

    def _pages(self, door: Door, part: Part) -> Iterator[Iterable[Row]]:
        table = self._options.table
        if table in FROM_EVENTS:
            make = FROM_EVENTS[table]
            # Without `after` it asks for what there is, also if that begins later when it is read.
            gaps = self._options.on_gap == "skip" or self._options.after is None
            for events in log_pages(door, part, gaps=gaps):
                yield (row for offset, event in events for row in make(part.queue, offset, event))
        else:
            of_record = FROM_RECORDS[table]
            for records in record_pages(door, part):
                yield (row for record in records for row in of_record(part.queue, record))


class FilteringReader(Reader):
    """The same, and takes filters. Apart, because Spark fails every read of such while its setting is off."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - Spark's name
        """Take what can be compared here, and return the rest."""
        self._narrowing, remaining = narrowed(self._options.table, filters)
        return remaining


def checked(table: str, schema: StructType) -> StructType:
    """Return a schema given by hand, a choice of the table's columns. Raises Refused for any other."""
    known = {field.name: field.dataType for field in struct_type(table)}
    for field in schema:
        if field.name not in known:
            raise Refused(
                f"table {table} has no column {field.name!r}; there are {', '.join(known)}", field=field.name
            )
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise Refused(
                f"column {field.name} of table {table} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}: read it so, and cast it afterwards",
                field=field.name,
            )
    return schema


def record_pages(door: Door, part: Part) -> Iterator[Sequence[ExportRecord]]:
    """Yield the ids of a part, page by page."""
    if part.ids is not None:
        for at in range(0, len(part.ids), PAGE):
            ids = part.ids[at : at + PAGE]
            slots = door.ask(door.storage.get(part.queue, ids))
            yield [ExportRecord(id=id, slot=slot) for id, slot in zip(ids, slots, strict=True)]
        return
    after, limit = part.after, PAGE
    while True:
        records, after = _page(door, part, after, limit)
        yield records
        if after is None:
            return
        limit = _fitting(limit, records)


def _page(door: Door, part: Part, after: str | None, limit: int) -> tuple[Sequence[ExportRecord], str | None]:
    if part.state is None:
        exported = door.ask(door.storage.export(part.queue, after=after, until=part.until, limit=limit))
        return exported.records, exported.after
    listed = door.ask(door.storage.list(part.queue, part.state, after=after, until=part.until, limit=limit))
    return [ExportRecord(id=id, slot=slot) for id, slot in listed.items], listed.after


def _fitting(limit: int, records: Sequence[ExportRecord]) -> int:
    """Return how many to ask for next, so that a page stays near PAGE_BYTES."""
    size = 0
    # For each row of a table: a sum over generators takes three times as long.
    for record in records:
        slot = record.slot
        for part in (slot.current, slot.successor, slot.outcome):
            if part is not None and part.data is not None:
                size += len(part.data.payload)
        if slot.outcome is not None and slot.outcome.result is not None:
            size += len(slot.outcome.result)
    return max(1, min(PAGE, limit * 2, limit * PAGE_BYTES // max(1, size)))


def log_pages(door: Door, part: Part, *, gaps: bool) -> Iterator[Sequence[tuple[str, LogEvent]]]:
    """Yield what the log has behind `part.after` and up to `part.until`, page by page.

    Raises StorageError when some of it was trimmed unread, unless gaps are allowed.
    """
    after, until = part.after or None, part.until or ""
    while after is None or after < until:
        page = door.ask(door.storage.events(part.queue, after=after, limit=PAGE))
        if page.fell_off and not gaps:
            raise StorageError(
                f"queue {part.queue!r}: what came directly after offset {after} is no longer kept. Keep the "
                "log longer (configure log_age, log_bytes), or allow it with option on_gap=skip"
            )
        yield [(offset, event) for offset, event in page.events if offset <= until]
        if not page.events or page.offset == after:
            return
        after = page.offset
