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
from dibs.spark.connection import StorageConnection
from dibs.spark.schemas import struct_type
from dibs.spark.source.options import ReadOptions
from dibs.spark.source.partitioning import id_ranges, offset_ranges
from dibs.spark.source.pushdown import Predicates, split_filters
from dibs.spark.source.rows import EVENT_ROWS, RECORD_ROWS, Row, to_record_batch
from dibs.storage.protocol import LATEST

#: Items of a page, fewer where they are large: a page of payloads of 1 MiB should not be 1 GiB.
PAGE: Final = 1000
PAGE_BYTES: Final = 16 * 1024 * 1024

#: The column that says an id's state, and what it may say.
STATES: Final[dict[str, tuple[str, tuple[State, ...]]]] = {
    "jobs": ("state", ("waiting", "active", "blocked")),
    "outcomes": ("kind", ("completed", "failed", "cancelled")),
}


class QueuePartition(ds.InputPartition):
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


class TableReader(ds.DataSourceReader):
    """Reads one table of one place."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(options.table, schema)
        self._predicates = Predicates()

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Plan the read: of each queue one part, or several where there is much and it can be cut."""
        with StorageConnection(self._options.url) as connection:
            queues = self._options.queues or tuple(
                info.name for info in connection.run(connection.storage.queues())
            )
            named = self._predicates.allowed_values("queue")
            wanted = [queue for queue in queues if named is None or queue in named]
            return [
                part for queue in wanted for part in self._parts(connection, queue, alone=len(wanted) == 1)
            ]

    def _parts(self, connection: StorageConnection, queue: str, *, alone: bool) -> Iterator[QueuePartition]:
        if self._options.table in EVENT_ROWS:
            end = (
                self._options.until
                or connection.run(connection.storage.events(queue, after=LATEST, limit=1)).offset
            )
            after, until = self._options.after, end
            if alone:
                # An offset means something in one log only.
                after = max(after or "", self._predicates.offset_after() or "") or None
                until = min(end, self._predicates.offset_until() or end)
            if end:
                parts = offset_ranges(connection, queue, after, until, self._options.partitions)
                yield from (QueuePartition(queue, after=begin, until=stop) for begin, stop in parts)
            return
        ids, states = self._predicates.allowed_values("id"), self._states()
        if ids is not None:
            yield QueuePartition(queue, ids=ids)
        else:
            for state in states if states is not None and len(states) <= 1 else (None,):
                cut = id_ranges(connection, queue, state, self._options.partitions)
                yield from (
                    QueuePartition(queue, state=state, after=begin, until=stop) for begin, stop in cut
                )

    def _states(self) -> list[State] | None:
        column, words = STATES[self._options.table]
        named = self._predicates.allowed_values(column)
        return None if named is None else [word for word in words if word in named]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one part, a batch for each page."""
        part = cast("QueuePartition", partition)
        if part.value is None:
            # What Spark makes when there is nothing to read.
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with StorageConnection(self._options.url) as connection:
            for page in self._pages(connection, part):
                if rows := self._predicates.filter_rows(page):
                    yield to_record_batch(self._options.table, rows, schema)

    def _pages(self, connection: StorageConnection, part: QueuePartition) -> Iterator[Iterable[Row]]:
        table = self._options.table
        if table in EVENT_ROWS:
            make = EVENT_ROWS[table]
            # Without `after` it asks for what there is, also if that begins later when it is read.
            gaps = self._options.on_gap == "skip" or self._options.after is None
            for events in log_pages(connection, part, gaps=gaps):
                yield (row for offset, event in events for row in make(part.queue, offset, event))
        else:
            of_record = RECORD_ROWS[table]
            for records in record_pages(connection, part):
                yield (row for record in records for row in of_record(part.queue, record))


class PushdownReader(TableReader):
    """The same, and takes filters. Apart, because Spark fails every read of such while its setting is off."""

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - Spark's name
        """Take what can be compared here, and return the rest."""
        self._predicates, remaining = split_filters(self._options.table, filters)
        return remaining


def check_schema(table: str, schema: StructType) -> StructType:
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


def record_pages(connection: StorageConnection, part: QueuePartition) -> Iterator[Sequence[ExportRecord]]:
    """Yield the ids of a part, page by page."""
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
    connection: StorageConnection, part: QueuePartition, after: str | None, limit: int
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


def log_pages(
    connection: StorageConnection, part: QueuePartition, *, gaps: bool
) -> Iterator[Sequence[tuple[str, LogEvent]]]:
    """Yield what the log has behind `part.after` and up to `part.until`, page by page.

    Raises StorageError when some of it was trimmed unread, unless gaps are allowed.
    """
    after, until = part.after or None, part.until or ""
    while after is None or after < until:
        page = connection.run(connection.storage.events(part.queue, after=after, limit=PAGE))
        if page.fell_off and not gaps:
            raise StorageError(
                f"queue {part.queue!r}: what came directly after offset {after} is no longer kept. Keep the "
                "log longer (configure log_age, log_bytes), or allow it with option on_gap=skip"
            )
        yield [(offset, event) for offset, event in page.events if offset <= until]
        if not page.events or page.offset == after:
            return
        after = page.offset
