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
from dibs.spark.door import Door, aside
from dibs.spark.history.layers import day_of
from dibs.spark.history.warehouse import folder_name
from dibs.spark.schemas import arrow_schema, struct_type
from dibs.spark.source.reading import PAGE, Part, log_pages
from dibs.spark.source.rows import batch_of, event_rows
from dibs.spark.source.splitting import stretches
from dibs.storage.protocol import LATEST


class Stretch(Struct, frozen=True):
    """A part of one queue's log: what lies behind `after` (None: the start of what is kept), to `until`."""

    queue: str
    after: str | None
    until: str
    #: It is a page at most.
    short: bool = False


class Look(Struct, frozen=True, kw_only=True):
    """Where the logs begin and end for this increment."""

    stretches: tuple[Stretch, ...]
    #: Queue -> where the next increment goes on.
    offsets: dict[str, str]
    #: Queues of which something was trimmed before it was read.
    gaps: tuple[str, ...]
    #: What a table calls the queues whose names are too long for a folder -> their names.
    names: dict[str, str]
    #: How many tasks are to read them.
    tasks: int


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


def look(url: str, offsets: Mapping[str, str], queues: Iterable[str] = (), *, tasks: int = 1) -> Look:
    """Find out what each log has gained since `offsets`; without `queues`, of every queue there is.

    A log that gained much is cut, to be read by several tasks. Raises Refused if a log ends before its
    offset: then it is not the log that was read.
    """
    return aside(lambda: _looked(url, offsets, set(queues), tasks))


def _looked(url: str, offsets: Mapping[str, str], queues: set[str], tasks: int) -> Look:
    found: list[Stretch] = []
    gaps, then = [], dict(offsets)
    with Door(url) as door:
        names = sorted(queues or {info.name for info in door.ask(door.storage.queues())})
        for queue in names:
            after = offsets.get(queue) or None
            until = door.ask(door.storage.events(queue, after=LATEST, limit=1)).offset
            if after is not None and until < after:
                raise Refused(
                    f"the log of queue {queue!r} ends before the offset this warehouse has read it to: it is "
                    "another place under the same name, or was emptied. Take a warehouse of its own for it",
                    field="warehouse",
                )
            if not until or until == after:
                continue
            page = door.ask(door.storage.events(queue, after=after, limit=PAGE))
            if page.fell_off and after is not None:
                gaps.append(queue)
                after = None
            found += _cut(door, Stretch(queue, after, until, short=page.offset >= until), tasks)
            then[queue] = until
    keys = {folder_name(queue): queue for queue in names}
    return Look(
        stretches=tuple(found),
        offsets=then,
        gaps=tuple(gaps),
        names={key: queue for key, queue in keys.items() if key != queue},
        tasks=tasks,
    )


def _cut(door: Door, whole: Stretch, tasks: int) -> list[Stretch]:
    if whole.short:
        return [whole]
    parts = stretches(door, whole.queue, whole.after, whole.until, tasks)
    return [Stretch(whole.queue, after, until) for after, until in parts]


class Stretches(ds.DataSource):
    """The source `dibs_stretches`: several logs in one read, each from its own offset to its own end.

    Long stretches have a task each, short ones share some: opening a place costs more than a page of a log.

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
        return _StretchReader(self.options["url"], msgspec.json.decode(self.options["look"], type=Look))


class _Share(ds.InputPartition):
    """What one task reads."""

    def __init__(self, stretches: Sequence[Stretch]) -> None:
        super().__init__(len(stretches))
        self.stretches = stretches


class _StretchReader(ds.DataSourceReader):
    def __init__(self, url: str, seen: Look) -> None:
        self._url = url
        self._seen = seen

    def partitions(self) -> list[_Share]:
        short = [one for one in self._seen.stretches if one.short]
        dealt = [short[place :: self._seen.tasks] for place in range(self._seen.tasks)]
        alone = [[one] for one in self._seen.stretches if not one.short]
        return [_Share(share) for share in (*alone, *dealt) if share]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        share, schema = cast("_Share", partition), arrow_schema("events")
        with Door(self._url) as door:
            for one in share.stretches:
                part, name = Part(one.queue, after=one.after, until=one.until), folder_name(one.queue)
                for page in log_pages(door, part, gaps=False):
                    told = [row for offset, event in page for row in event_rows(name, offset, event)]
                    if told:
                        yield batch_of("events", told, schema)


def events_in(spark: SparkSession, url: str, seen: Look) -> DataFrame:
    """Return the events of what was looked at; those of a stretch are together, and in order."""
    spark.dataSource.register(Stretches)
    told = msgspec.json.encode(seen).decode()
    source = spark.read.format(Stretches.name()).option("url", url).option("look", told)
    return source.load().withColumn("date", day_of("at"))
