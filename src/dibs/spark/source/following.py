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
from dibs.spark.door import Door
from dibs.spark.source.options import FollowOptions
from dibs.spark.source.reading import PAGE, Part, checked, log_pages
from dibs.spark.source.rows import FROM_EVENTS, batch_of
from dibs.storage.protocol import LATEST

#: Each queue's offset, everything up to it read; "" is the start of a log.
Position = dict[str, str]


class Follower(ds.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the logs of some queues, or of all there are: then new ones join from their start.

    `read` runs in tasks; everything else in one process of the driver's machine for as long as the query.
    """

    def __init__(self, options: FollowOptions, schema: StructType) -> None:
        self._options = options
        self._schema = checked(options.table, schema)
        #: Where this run of the query ends, with a trigger that is to end.
        self._target: Position | None = None

    # -- positions -----------------------------------------------------------------------------------

    def initialOffset(self) -> Position:  # noqa: N802 - Spark's own names, here and below
        """Return where a query begins that has no checkpoint."""
        with Door(self._options.url) as door:
            queues = self._queues(door)
            if self._options.start == "latest":
                return {queue: _end(door, queue) for queue in queues}
        given = self._options.start if isinstance(self._options.start, dict) else {}
        return {queue: given.get(queue, "") for queue in queues}

    def latestOffset(self, start: Position, limit: ReadLimit) -> Position:  # noqa: N802
        """Return how far the next batch goes."""
        self._check_checkpoint(start)
        with Door(self._options.url) as door:
            ends = self._target or {queue: _end(door, queue) for queue in self._queues(door)}
            # A queue that is gone, or was not there when the target was set, stays where it is.
            ends = {**start, **ends}
            if isinstance(limit, ReadMaxRows):
                ends = _within(door, start, ends, limit.max_rows)
        # Behind what a batch in the checkpoint reached already it must never go.
        return {queue: max(end, start.get(queue, "")) for queue, end in ends.items()}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that option max_events sets."""
        most = self._options.max_events
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of where the logs end now: the query ends there."""
        with Door(self._options.url) as door:
            self._target = {queue: _end(door, queue) for queue in self._queues(door)}

    def _queues(self, door: Door) -> Sequence[str]:
        return self._options.queues or [info.name for info in door.ask(door.storage.queues())]

    def _check_checkpoint(self, start: Mapping[str, str]) -> None:
        """Refuse to go on from the checkpoint of another query: its offsets mean nothing here."""
        wanted = self._options.queues
        if wanted is not None and set(start) != set(wanted):
            raise ConfigurationError(
                f"the checkpoint is of another queue: {', '.join(sorted(start)) or '(none)'}, where this "
                f"query reads {', '.join(sorted(wanted))}. Give it a checkpointLocation of its own"
            )

    # -- rows ----------------------------------------------------------------------------------------

    def partitions(self, start: Position, end: Position) -> Sequence[ds.InputPartition]:
        """Plan a batch: the stretch of each log that is new."""
        # A query that goes on from a checkpoint begins here, with the batch it was killed in.
        self._check_checkpoint(end)
        return [
            Part(queue, after=start.get(queue, ""), until=until)
            for queue, until in sorted(end.items())
            if until > start.get(queue, "")
        ]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one stretch: the same ones whenever it is read again."""
        part, table = cast("Part", partition), self._options.table
        schema, make = to_arrow_schema(self._schema, timezone="UTC"), FROM_EVENTS[table]
        with Door(self._options.url) as door:
            for events in log_pages(door, part, gaps=self._options.on_gap == "skip"):
                rows = [row for offset, event in events for row in make(part.queue, offset, event)]
                if rows:
                    yield batch_of(table, rows, schema)


def _end(door: Door, queue: str) -> str:
    return door.ask(door.storage.events(queue, after=LATEST, limit=1)).offset


def _within(door: Door, start: Position, ends: Position, most: int) -> Position:
    """Return a position at most `most` events on, shared out so that no queue waits for another's backlog."""
    behind = [queue for queue, end in sorted(ends.items()) if end > start.get(queue, "")]
    share = max(1, most // max(1, len(behind)))
    return {
        queue: _ahead(door, queue, start.get(queue, ""), end, share) if queue in behind else end
        for queue, end in ends.items()
    }


def _ahead(door: Door, queue: str, after: str, end: str, most: int) -> str:
    """Return the offset of the event `most` events behind `after`, or `end` if that comes first."""
    while most > 0 and after < end:
        page = door.ask(door.storage.events(queue, after=after or None, limit=min(most, PAGE)))
        if not page.events:
            return end
        most, after = most - len(page.events), page.offset
    return min(after, end)
