"""The batch reader: the plan of a read, its partitions, and the pages that tasks read.

Ids are read with `export`, so that each id appears exactly once even if its state changes meanwhile. A
filter on one state reads the listing of that state instead. A log is read up to its end at planning time, so
that a retried task reads the same events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, cast

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.model.results import State
from dibs.spark.connection import StorageConnection
from dibs.spark.executors import Shipped, freeze_imports
from dibs.spark.schemas import struct_type
from dibs.spark.source.options import ReadOptions
from dibs.spark.source.pages import id_ranges, log_pages, offset_ranges, record_pages
from dibs.spark.source.pushdown import Predicates, split_filters
from dibs.spark.source.record_columns import ITEMS, Item, passing_items, to_record_batch

#: Table -> the column with the state of an id, and its possible values.
STATES: Final[dict[str, tuple[str, tuple[State, ...]]]] = {
    "jobs": ("state", ("waiting", "active", "blocked")),
    "outcomes": ("kind", ("completed", "failed", "cancelled")),
}


class QueuePartition(ds.InputPartition):
    """The input of one task: a part of the ids or of the log of one queue.

    Ids are given one by one in `ids`, or as a range of all ids or of the ids in one `state`. The range is
    behind `after` and up to `until`; for a log these are offsets.
    """

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


class TableReader(Shipped, ds.DataSourceReader):
    """The batch reader of one table of a storage."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(options.table, schema)
        self._predicates = Predicates()

    def partitions(self) -> Sequence[ds.InputPartition]:
        """Plan the read: one partition per queue, or several if the queue is large and can be split."""
        with StorageConnection(self._options.url) as connection:
            queues = self._options.queues or connection.queue_names()
            allowed = self._predicates.allowed_values("queue")
            queues = [queue for queue in queues if allowed is None or queue in allowed]
            if self._options.table not in STATES:
                is_single = len(queues) == 1
                parts = (self._log_partitions(connection, queue, is_single=is_single) for queue in queues)
            else:
                parts = (self._id_partitions(connection, queue) for queue in queues)
            partitions = [*chain.from_iterable(parts)]
        freeze_imports()
        return partitions

    def _log_partitions(
        self, connection: StorageConnection, queue: str, *, is_single: bool
    ) -> Iterator[QueuePartition]:
        end = self._options.until or connection.log_end(queue)
        after, until = self._options.after, end
        if is_single:
            # Offsets of different logs cannot be compared, so offset filters apply to a single queue only.
            after = max(after or "", self._predicates.offset_after() or "") or None
            until = min(end, self._predicates.offset_until() or end)
        if end:
            for start, stop in offset_ranges(connection, queue, after, until, self._options.partitions):
                yield QueuePartition(queue, after=start, until=stop)

    def _id_partitions(self, connection: StorageConnection, queue: str) -> Iterator[QueuePartition]:
        ids, states = self._predicates.allowed_values("id"), self._states()
        if ids is not None:
            yield QueuePartition(queue, ids=ids)
            return
        for state in states if states is not None and len(states) <= 1 else (None,):
            for start, stop in id_ranges(connection, queue, state, self._options.partitions):
                yield QueuePartition(queue, state=state, after=start, until=stop)

    def _states(self) -> list[State] | None:
        column, states = STATES[self._options.table]
        allowed = self._predicates.allowed_values(column)
        return None if allowed is None else [state for state in states if state in allowed]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition as Arrow, one batch per page."""
        part = cast("QueuePartition", partition)
        if part.value is None:
            # Spark passes an empty partition if the plan has no partitions.
            return
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with StorageConnection(self._options.url) as connection:
            yield from self._read_rows(connection, part, schema)
        freeze_imports()

    def _read_rows(
        self, connection: StorageConnection, part: QueuePartition, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        table = self._options.table
        for page in self._pages(connection, part):
            if items := passing_items(table, part.queue, page, self._predicates.predicates):
                yield to_record_batch(table, part.queue, items, schema)

    def _pages(self, connection: StorageConnection, part: QueuePartition) -> Iterator[Sequence[Item]]:
        items = ITEMS[self._options.table]
        if self._options.table in STATES:
            yield from map(items, record_pages(connection, part))
            return
        # Without `after`, the read starts at the oldest event, so events trimmed since planning are no gap.
        gaps = self._options.on_gap == "skip" or self._options.after is None
        yield from map(items, log_pages(connection, part, gaps=gaps))


class PushdownReader(TableReader):
    """A batch reader with filter pushdown.

    This is a separate class because Spark fails every read of a reader with `pushFilters` while
    spark.sql.python.filterPushdown.enabled is false.
    """

    def pushFilters(self, filters: list[ds.Filter]) -> Iterable[ds.Filter]:  # noqa: N802 - Spark's name
        """Keep the filters that this reader can apply, and return the rest."""
        self._predicates, remaining = split_filters(self._options.table, filters)
        return remaining


def check_schema(table: str, schema: StructType) -> StructType:
    """Return the schema of a read, if its columns are columns of the table. Raise Refused otherwise."""
    known = {field.name: field.dataType for field in struct_type(table)}
    for field in schema:
        if field.name not in known:
            raise Refused(
                f"table {table} has no column {field.name!r}; its columns are {', '.join(known)}",
                field=field.name,
            )
        if field.dataType.simpleString() != known[field.name].simpleString():
            raise Refused(
                f"column {field.name} of table {table} is {known[field.name].simpleString()}, not "
                f"{field.dataType.simpleString()}; read it as is and cast it afterwards",
                field=field.name,
            )
    return schema
