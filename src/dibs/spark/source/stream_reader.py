"""The reader of a stream of events.

The offset of the stream, kept in the checkpoint, is one log offset per queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from dibs.errors import ConfigurationError
from dibs.spark.connection import StorageConnection
from dibs.spark.executors import Shipped
from dibs.spark.source.batch_reader import QueuePartition, check_schema
from dibs.spark.source.options import StreamOptions
from dibs.spark.source.pages import PAGE, log_pages, offset_ranges
from dibs.spark.source.record_columns import ITEMS, to_record_batch

#: Queue -> offset of the last event read; "" is the start of the log.
StreamOffset = dict[str, str]


class EventStreamReader(Shipped, ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The stream reader of the logs of some queues, or of all queues; a new queue is read from its start.

    Spark calls `read` in tasks. It calls the other methods in one process on the driver's machine, which
    lives as long as the query.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(options.table, schema)
        #: With the trigger availableNow: the offset at which the query stops.
        self._target: StreamOffset | None = None
        #: Number of micro-batches that this process has planned.
        self._turn = 0

    # -- offsets -------------------------------------------------------------------------------------

    def initialOffset(self) -> StreamOffset:  # noqa: N802 - Spark's names, here and below
        """Return the start of a query without a checkpoint."""
        with StorageConnection(self._options.url) as connection:
            queues = self._queue_names(connection)
            if self._options.start == "latest":
                return {queue: connection.log_end(queue) for queue in queues}
        given = self._options.start if isinstance(self._options.start, dict) else {}
        return {queue: given.get(queue, "") for queue in queues}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Return the end of the next micro-batch."""
        self._check_checkpoint(start)
        with StorageConnection(self._options.url) as connection:
            ends = self._target or self._log_ends(connection)
            # Keep the offset of a queue that was deleted, or that was created after the target was set.
            ends = {**start, **ends}
            if isinstance(limit, ReadMaxRows):
                ends = _limit_offset(connection, start, ends, limit.max_rows, self._turn)
                self._turn += 1
        # The end must never be before `start`, which a micro-batch in the checkpoint has reached.
        return {queue: max(end, start.get(queue, "")) for queue, end in ends.items()}

    def reportLatestOffset(self) -> StreamOffset:  # noqa: N802
        """Return the ends of the logs. Spark shows them in the progress of a query."""
        with StorageConnection(self._options.url) as connection:
            return self._log_ends(connection)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the option max_events sets."""
        most = self._options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current ends of the logs as the target at which the query stops."""
        with StorageConnection(self._options.url) as connection:
            self._target = self._log_ends(connection)

    def _queue_names(self, connection: StorageConnection) -> Sequence[str]:
        return self._options.queues or connection.queue_names()

    def _log_ends(self, connection: StorageConnection) -> StreamOffset:
        return {queue: connection.log_end(queue) for queue in self._queue_names(connection)}

    def _check_checkpoint(self, start: Mapping[str, str]) -> None:
        """Raise ConfigurationError if the checkpoint has offsets of other queues than this query reads."""
        queues = self._options.queues
        if queues is not None and set(start) != set(queues):
            raise ConfigurationError(
                f"the checkpoint belongs to a query on {', '.join(sorted(start)) or 'no queue'}, but this "
                f"query reads {', '.join(sorted(queues))}. Set another checkpointLocation"
            )

    # -- rows ----------------------------------------------------------------------------------------

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[ds.InputPartition]:
        """Plan a micro-batch: a partition for each queue with new events, or more up to `partitions`."""
        # After a restart, Spark first plans the micro-batch that was interrupted, so check its checkpoint
        # here too.
        self._check_checkpoint(end)
        queues = [queue for queue in sorted(end) if end[queue] > start.get(queue, "")]
        parts = self._options.partitions // len(queues) if queues else 0
        if parts < 2:  # nothing to split, so no look at the logs
            return [QueuePartition(one, after=start.get(one, ""), until=end[one]) for one in queues]
        with StorageConnection(self._options.url) as connection:
            return [
                QueuePartition(queue, after=after or "", until=until)
                for queue in queues
                for after, until in offset_ranges(
                    connection, queue, start.get(queue) or None, end[queue], parts
                )
            ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition. A second read of the same partition yields the same rows."""
        part, table = cast("QueuePartition", partition), self._options.table
        schema = to_arrow_schema(self._schema, timezone="UTC")
        with StorageConnection(self._options.url) as connection:
            for events in log_pages(connection, part, gaps=self._options.on_gap == "skip"):
                if items := ITEMS[table](events):
                    yield to_record_batch(table, part.queue, items, schema)


def _limit_offset(
    connection: StorageConnection, start: StreamOffset, ends: StreamOffset, most: int, turn: int
) -> StreamOffset:
    """Return offsets at most `most` events after `start`.

    Each queue gets the same share of the events, so that the backlog of one queue does not delay
    another. Of more queues than `most`, other ones get their share in each turn.
    """
    behind = [queue for queue, end in sorted(ends.items()) if end > start.get(queue, "")]
    if len(behind) > most:
        first = turn * most % len(behind)
        behind = [*behind[first:], *behind[:first]][:most]
    share = most // max(1, len(behind))
    return {
        queue: _offset_after(connection, queue, start.get(queue, ""), end, share)
        if queue in behind
        else start.get(queue, "")
        for queue, end in ends.items()
    }


def _offset_after(connection: StorageConnection, queue: str, after: str, end: str, most: int) -> str:
    """Return the offset `most` events behind `after`, or `end` if `end` comes first."""
    while most > 0 and after < end:
        page = connection.run(connection.storage.events(queue, after=after or None, limit=min(most, PAGE)))
        if not page.events:
            return end
        most, after = most - len(page.events), page.offset
    return min(after, end)
