"""What an increment takes from the storage: who is live, then what the logs have gained, one task a queue.

The live jobs are read before it is settled where each log ends. So what ended in between is known twice,
and told apart by its range and fence; the other way round it might be known not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast
from urllib.parse import parse_qsl

import msgspec
import pyarrow as pa
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from dibs.errors import Refused
from dibs.spark.door import Door, aside
from dibs.spark.history.layers import day_of, ended
from dibs.spark.history.tables import FINAL, LIVE, PARTITIONS
from dibs.spark.schemas import arrow_schema, struct_type
from dibs.spark.source.datasource import DibsSource
from dibs.spark.source.reading import Part, log_pages
from dibs.spark.source.rows import batch_of, event_rows
from dibs.storage.protocol import LATEST

#: Of a live job's columns, those that history needs; its payload stays where it is.
_OF_JOBS: Final = (
    "queue string, id string, state string, first long, fence long, "
    "enqueued_at timestamp, run_at timestamp, claimed_at timestamp"
)


class Stretch(Struct, frozen=True):
    """A part of one queue's log: what lies behind `after` (None: the start of what is kept), to `until`."""

    queue: str
    after: str | None
    until: str


class Look(Struct, frozen=True, kw_only=True):
    """Where the logs begin and end for this increment."""

    stretches: tuple[Stretch, ...]
    #: Queue -> where the next increment goes on.
    offsets: dict[str, str]
    #: Queues of which something was trimmed before it was read.
    gaps: tuple[str, ...]


def source_of(url: str) -> str:
    """Return how a place is called, without its secrets and with its prefix: two of them are two places."""
    shown = aside(lambda: _shown(url))
    prefix = dict(parse_qsl(url.partition("?")[2])).get("prefix")
    if prefix is None or "prefix=" in shown:
        return shown
    return f"{shown}{'&' if '?' in shown else '?'}prefix={prefix}"


def _shown(url: str) -> str:
    with Door(url) as door:
        return door.storage.url


def look(url: str, offsets: Mapping[str, str], queues: Iterable[str] = ()) -> Look:
    """Find out what each log has gained since `offsets`; without `queues`, of every queue there is.

    Raises Refused if a log ends before its offset: then it is not the log that was read.
    """
    return aside(lambda: _looked(url, offsets, set(queues)))


def _looked(url: str, offsets: Mapping[str, str], queues: set[str]) -> Look:
    stretches, gaps, then = [], [], dict(offsets)
    with Door(url) as door:
        for queue in sorted(queues or {info.name for info in door.ask(door.storage.queues())}):
            after = offsets.get(queue) or None
            until = door.ask(door.storage.events(queue, after=LATEST, limit=1)).offset
            if after is not None and until < after:
                raise Refused(
                    f"the log of queue {queue!r} ends before the offset this warehouse has read it to: it is "
                    "another place under the same name, or was emptied. Take a warehouse of its own for it",
                    field="warehouse",
                )
            if after is not None and door.ask(door.storage.events(queue, after=after, limit=1)).fell_off:
                gaps.append(queue)
                after = None
            if until and until != after:
                stretches.append(Stretch(queue, after, until))
                then[queue] = until
    return Look(stretches=tuple(stretches), offsets=then, gaps=tuple(gaps))


class Stretches(ds.DataSource):
    """The source `dibs_stretches`: several logs in one read, each from its own offset to its own end.

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
        """Return who reads the stretches that the options tell."""
        return _StretchReader(self.options["url"], self.options["stretches"])


class _StretchReader(ds.DataSourceReader):
    def __init__(self, url: str, stretches: str) -> None:
        self._url = url
        self._stretches = msgspec.json.decode(stretches, type=list[Stretch])

    def partitions(self) -> list[Part]:
        return [Part(one.queue, after=one.after, until=one.until) for one in self._stretches]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        part = cast("Part", partition)
        if part.value is None:
            # What Spark makes when there is nothing to read.
            return
        schema = arrow_schema("events")
        with Door(self._url) as door:
            for page in log_pages(door, part, gaps=False):
                told = [row for offset, event in page for row in event_rows(part.queue, offset, event)]
                if told:
                    yield batch_of("events", told, schema)


def events_in(spark: SparkSession, url: str, stretches: Iterable[Stretch]) -> DataFrame:
    """Return the events of some stretches, one task for each: a log is read in order."""
    spark.dataSource.register(Stretches)
    told = msgspec.json.encode(list(stretches)).decode()
    source = spark.read.format(Stretches.name()).option("url", url).option("stretches", told)
    return source.load().withColumn("date", day_of("at"))


def live_in(spark: SparkSession, url: str, queues: Iterable[str] = ()) -> DataFrame:
    """Return what is live: the current and the successor of every id."""
    spark.dataSource.register(DibsSource)
    source = spark.read.format("dibs").option("url", url).option("table", "jobs").schema(_OF_JOBS)
    if wanted := sorted(set(queues)):
        source = source.option("queue", msgspec.json.encode(wanted).decode())
    jobs = source.load().withColumn("due_at", f.greatest("run_at", "enqueued_at"))
    # A job that moves while its queue is listed may be told twice; once is enough.
    once = jobs.dropDuplicates(["queue", "id", "first"])
    return once.withColumn("date", day_of("enqueued_at")).select(*LIVE, *PARTITIONS)


def still_live(live: DataFrame, events: DataFrame) -> DataFrame:
    """Return what of the live is not over by the events read after it; a run that came back waits again."""
    over = ended(events).where(f.col("kind").isin(*FINAL)).select("queue", "id", "first").distinct()
    back = ended(events).where(f.col("fence").isNotNull()).select("queue", "id", "fence").distinct()
    returned = back.withColumn("returned", f.col("fence").isNotNull())
    left = live.join(over, ["queue", "id", "first"], "left_anti").join(
        returned, ["queue", "id", "fence"], "left"
    )
    is_active = f.col("returned").isNull()
    return left.withColumns(
        {
            "claimed_at": f.when(is_active, f.col("claimed_at")),
            "fence": f.when(is_active, f.col("fence")),
            "state": f.when(is_active, f.col("state")).otherwise("waiting"),
        }
    ).select(*LIVE, *PARTITIONS)
