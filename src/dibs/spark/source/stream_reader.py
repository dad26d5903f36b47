"""The stream of events. Its positions are offsets of each queue's log, so a checkpoint says what was read."""

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
from dibs.spark.source.batch_reader import PAGE, QueuePartition, check_schema, log_pages
from dibs.spark.source.options import StreamOptions
from dibs.spark.source.rows import EVENT_ROWS, to_record_batch
from dibs.storage.protocol import LATEST

#: Each queue's offset, everything up to it read; "" is the start of a log.
StreamOffset = dict[str, str]


class EventStreamReader(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of some queues, or of all there are: then new ones join from their start.

    `read` runs in tasks; everything else in one process of the driver's machine for as long as the query.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(options.table, schema)
        #: Where this run of the query ends, with a trigger that is to end.
        self._target: StreamOffset | None = None

    # -- positions -----------------------------------------------------------------------------------

    def initialOffset(self) -> StreamOffset:  # noqa: N802 - Spark's own names, here and below
        """Return where a query begins that has no checkpoint."""
        with StorageConnection(self._options.url) as connection:
            queues = self._queues(connection)
            if self._options.start == "latest":
                return {queue: _end(connection, queue) for queue in queues}
        given = self._options.start if isinstance(self._options.start, dict) else {}
        return {queue: given.get(queue, "") for queue in queues}

    def latestOffset(self, start: StreamOffset, limit: ReadLimit) -> StreamOffset:  # noqa: N802
        """Return how far the next batch goes."""
        self._check_checkpoint(start)
        with StorageConnection(self._options.url) as connection:
            ends = self._target or {queue: _end(connection, queue) for queue in self._queues(connection)}
            # A queue that is gone, or was not there when the target was set, stays where it is.
            ends = {**start, **ends}
            if isinstance(limit, ReadMaxRows):
                ends = _limit_offset(connection, start, ends, limit.max_rows)
        # Behind what a batch in the checkpoint reached already it must never go.
        return {queue: max(end, start.get(queue, "")) for queue, end in ends.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that option max_events sets."""
        most = self._options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of where the logs end now: the query ends there."""
        with StorageConnection(self._options.url) as connection:
            self._target = {queue: _end(connection, queue) for queue in self._queues(connection)}

    def _queues(self, connection: StorageConnection) -> Sequence[str]:
        return self._options.queues or [info.name for info in connection.run(connection.storage.queues())]

    def _check_checkpoint(self, start: Mapping[str, str]) -> None:
        """Refuse to go on from the checkpoint of another query: its offsets mean nothing here."""
        wanted = self._options.queues
        if wanted is not None and set(start) != set(wanted):
            raise ConfigurationError(
                f"the checkpoint is of another queue: {', '.join(sorted(start)) or '(none)'}, where this "
                f"query reads {', '.join(sorted(wanted))}. Give it a checkpointLocation of its own"
            )

    # -- rows ----------------------------------------------------------------------------------------

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[ds.InputPartition]:
        """Plan a batch: the stretch of each log that is new."""
        # A query that goes on from a checkpoint begins here, with the batch it was killed in.
        self._check_checkpoint(end)
        return [
            QueuePartition(queue, after=start.get(queue, ""), until=until)
            for queue, until in sorted(end.items())
            if until > start.get(queue, "")
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one stretch: the same ones whenever it is read again."""
        part, table = cast("QueuePartition", partition), self._options.table
        schema, make = to_arrow_schema(self._schema, timezone="UTC"), EVENT_ROWS[table]
        with StorageConnection(self._options.url) as connection:
            for events in log_pages(connection, part, gaps=self._options.on_gap == "skip"):
                rows = [row for offset, event in events for row in make(part.queue, offset, event)]
                if rows:
                    yield to_record_batch(table, rows, schema)


def _end(connection: StorageConnection, queue: str) -> str:
    return connection.run(connection.storage.events(queue, after=LATEST, limit=1)).offset


def _limit_offset(
    connection: StorageConnection, start: StreamOffset, ends: StreamOffset, most: int
) -> StreamOffset:
    """Return a position at most `most` events on, shared out so that no queue waits for another's backlog."""
    behind = [queue for queue, end in sorted(ends.items()) if end > start.get(queue, "")]
    share = max(1, most // max(1, len(behind)))
    return {
        queue: _offset_after(connection, queue, start.get(queue, ""), end, share) if queue in behind else end
        for queue, end in ends.items()
    }


def _offset_after(connection: StorageConnection, queue: str, after: str, end: str, most: int) -> str:
    """Return the offset of the event `most` events behind `after`, or `end` if that comes first."""
    while most > 0 and after < end:
        page = connection.run(connection.storage.events(queue, after=after or None, limit=min(most, PAGE)))
        if not page.events:
            return end
        most, after = most - len(page.events), page.offset
    return min(after, end)
