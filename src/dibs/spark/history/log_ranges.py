"""What an increment takes from the logs, once it has read who is live (living.py).

The live jobs are read before it is settled where each log ends. So what ended in between is known twice,
and told apart by its range and fence; the other way round it might be known not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import parse_qsl

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.transforms import utc_date
from dibs.spark.history.warehouse import folder_name
from dibs.spark.schemas import arrow_schema, struct_type
from dibs.spark.source.batch_reader import PAGE, QueuePartition, log_pages
from dibs.spark.source.partitioning import offset_ranges
from dibs.spark.source.rows import event_rows, to_record_batch
from dibs.storage.protocol import LATEST


class LogRange(Struct, frozen=True):
    """A part of one queue's log: what lies behind `after` (None: the start of what is kept), to `until`."""

    queue: str
    after: str | None
    until: str
    #: It is a page at most.
    is_short: bool = False


class ReadPlan(Struct, frozen=True, kw_only=True):
    """Where the logs begin and end for this increment."""

    ranges: tuple[LogRange, ...]
    #: Queue -> where the next increment goes on.
    offsets: dict[str, str]
    #: Queues of which something was trimmed before it was read.
    gaps: tuple[str, ...]
    #: What a table calls the queues whose names are too long for a folder -> their names.
    names: dict[str, str]
    #: How many tasks are to read them.
    tasks: int


def source_name(url: str) -> str:
    """Return how a place is called, without its secrets and with its prefix: two of them are two places."""
    shown = run_in_thread(lambda: _display_url(url))
    prefix = dict(parse_qsl(url.partition("?")[2])).get("prefix")
    if prefix is None or "prefix=" in shown:
        return shown
    return f"{shown}{'&' if '?' in shown else '?'}prefix={prefix}"


def _display_url(url: str) -> str:
    with StorageConnection(url) as connection:
        return connection.storage.url


def plan_read(
    url: str, offsets: Mapping[str, str], queues: Iterable[str] = (), *, tasks: int = 1
) -> ReadPlan:
    """Find out what each log has gained since `offsets`; without `queues`, of every queue there is.

    A log that gained much is cut, to be read by several tasks. Raises Refused if a log ends before its
    offset: then it is not the log that was read.
    """
    return run_in_thread(lambda: _plan_read(url, offsets, set(queues), tasks))


def _plan_read(url: str, offsets: Mapping[str, str], queues: set[str], tasks: int) -> ReadPlan:
    found: list[LogRange] = []
    gaps, new_offsets = [], dict(offsets)
    with StorageConnection(url) as connection:
        names = sorted(queues or {info.name for info in connection.run(connection.storage.queues())})
        for queue in names:
            after = offsets.get(queue) or None
            until = connection.run(connection.storage.events(queue, after=LATEST, limit=1)).offset
            if after is not None and until < after:
                raise Refused(
                    f"the log of queue {queue!r} ends before the offset this warehouse has read it to: it is "
                    "another place under the same name, or was emptied. Take a warehouse of its own for it",
                    field="warehouse",
                )
            if not until or until == after:
                continue
            page = connection.run(connection.storage.events(queue, after=after, limit=PAGE))
            if page.fell_off and after is not None:
                gaps.append(queue)
                after = None
            found += _split(connection, LogRange(queue, after, until, is_short=page.offset >= until), tasks)
            new_offsets[queue] = until
    keys = {folder_name(queue): queue for queue in names}
    return ReadPlan(
        ranges=tuple(found),
        offsets=new_offsets,
        gaps=tuple(gaps),
        names={key: queue for key, queue in keys.items() if key != queue},
        tasks=tasks,
    )


def _split(connection: StorageConnection, whole: LogRange, tasks: int) -> list[LogRange]:
    if whole.is_short:
        return [whole]
    parts = offset_ranges(connection, whole.queue, whole.after, whole.until, tasks)
    return [LogRange(whole.queue, after, until) for after, until in parts]


class LogRangeSource(ds.DataSource):
    """The source `dibs_stretches`: several logs in one read, each from its own offset to its own end.

    Long ranges have a task each, short ones share some: opening a place costs more than a page of a log.

    The source `dibs` takes offsets for one queue; and `mapInArrow`, which could do without a source, asks for
    pandas.
    """

    @classmethod
    def name(cls) -> str:
        """Return what stands in `format(...)`."""
        return "dibs_stretches"

    def schema(self) -> StructType:
        """Return the columns of the table `events`."""
        return struct_type("events")

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        """Return who reads the ranges that the options tell."""
        return _LogRangeReader(self.options["url"], msgspec.json.decode(self.options["plan"], type=ReadPlan))


class _LogPartition(ds.InputPartition):
    """What one task reads."""

    def __init__(self, ranges: Sequence[LogRange]) -> None:
        super().__init__(len(ranges))
        self.ranges = ranges


class _LogRangeReader(ds.DataSourceReader):
    def __init__(self, url: str, plan: ReadPlan) -> None:
        self._url = url
        self._plan = plan

    def partitions(self) -> list[_LogPartition]:
        is_short = [one for one in self._plan.ranges if one.is_short]
        groups = [is_short[index :: self._plan.tasks] for index in range(self._plan.tasks)]
        alone = [[one] for one in self._plan.ranges if not one.is_short]
        return [_LogPartition(log_partition) for log_partition in (*alone, *groups) if log_partition]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        log_partition, schema = cast("_LogPartition", partition), arrow_schema("events")
        with StorageConnection(self._url) as connection:
            for one in log_partition.ranges:
                part, name = (
                    QueuePartition(one.queue, after=one.after, until=one.until),
                    folder_name(one.queue),
                )
                for page in log_pages(connection, part, gaps=False):
                    rows = [row for offset, event in page for row in event_rows(name, offset, event)]
                    if rows:
                        yield to_record_batch("events", rows, schema)


def read_new_events(spark: SparkSession, url: str, plan: ReadPlan) -> DataFrame:
    """Return the events of what was looked at; those of a stretch are together, and in order."""
    spark.dataSource.register(LogRangeSource)
    rows = msgspec.json.encode(plan).decode()
    source = spark.read.format(LogRangeSource.name()).option("url", url).option("plan", rows)
    return source.load().withColumn("date", utc_date("at"))
