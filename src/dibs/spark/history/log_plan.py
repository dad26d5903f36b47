"""The plan of an increment: the range of each log that it reads.

The live jobs (live_records.py) are read first, and the ends of the logs are fixed afterwards. A job that ends
between these two steps is then in both results, and its revision range and fence (the number of its claim)
identify it. In the opposite order, such a job could be missing from both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from urllib.parse import parse_qsl

from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.requests import Settings
from dibs.model.worker_record import without_reserved
from dibs.spark.connection import StorageConnection, run_in_thread
from dibs.spark.history.warehouse.names import folder_name
from dibs.spark.source.pages import PAGE
from dibs.spark.source.partitioning import offset_ranges


class LogRange(Struct, frozen=True):
    """A range of one queue's log: behind `after` (None: from the oldest event on), up to `until`."""

    queue: str
    after: str | None
    until: str
    #: True if the range has at most one page of events.
    is_short: bool = False
    #: True if the queue has a limit by key (per_key or key_rate), so that its jobs may have keys.
    has_keys: bool = False


class ReadPlan(Struct, frozen=True, kw_only=True):
    """The log ranges that one increment reads. Sent to Spark as JSON, in an option of the data source."""

    ranges: tuple[LogRange, ...]
    #: Queue -> offset at which the next increment starts.
    offsets: dict[str, str]
    #: Queues with events that were trimmed before they were read.
    gaps: tuple[str, ...]
    #: Name in the tables -> name of the queue, for queues whose names are too long for a folder.
    names: dict[str, str]
    #: Number of tasks to divide the short ranges among.
    tasks: int


def source_name(url: str) -> str:
    """Return a storage's URL without secrets and with its prefix: each prefix is a separate storage."""
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
    """Return the ranges of the logs behind `offsets`; without `queues`, of all queues.

    A log with many new events is split into several ranges. Raise Refused if a log ends before its
    offset: then it is not the log that earlier increments have read.
    """
    return run_in_thread(lambda: _plan_read(url, offsets, set(queues), tasks))


def _plan_read(url: str, offsets: Mapping[str, str], queues: set[str], tasks: int) -> ReadPlan:
    found: list[LogRange] = []
    gaps, new_offsets = [], dict(offsets)
    with StorageConnection(url) as connection:
        infos = without_reserved(connection.run(connection.storage.queues()))
        keyed = {info.name for info in infos if _has_key_limit(info.settings)}
        names = sorted(queues or {info.name for info in infos})
        for queue in names:
            after = offsets.get(queue) or None
            until = connection.log_end(queue)
            if after is not None and until < after:
                raise Refused(
                    f"the log of queue {queue!r} ends before the offset that this warehouse has read: the "
                    "storage was emptied, or is another one with the same URL. Use a new warehouse for it",
                    field="warehouse",
                )
            if not until or until == after:
                continue
            page = connection.run(connection.storage.events(queue, after=after, limit=PAGE))
            if page.fell_off and after is not None:
                gaps.append(queue)
                after = None
            log = LogRange(queue, after, until, is_short=page.offset >= until, has_keys=queue in keyed)
            found += _split_range(connection, log, tasks)
            new_offsets[queue] = until
    keys = {folder_name(queue): queue for queue in names}
    return ReadPlan(
        ranges=tuple(found),
        offsets=new_offsets,
        gaps=tuple(gaps),
        names={key: queue for key, queue in keys.items() if key != queue},
        tasks=tasks,
    )


def _has_key_limit(settings: Settings) -> bool:
    return settings.per_key is not None or settings.key_rate is not None


def _split_range(connection: StorageConnection, log: LogRange, tasks: int) -> list[LogRange]:
    if log.is_short:
        return [log]
    parts = offset_ranges(connection, log.queue, log.after, log.until, tasks)
    return [replace(log, after=after, until=until) for after, until in parts]
