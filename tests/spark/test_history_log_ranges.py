"""Where an increment begins and ends in each log; no Spark is started for that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import pytest

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.spark.connection import StorageConnection
from dibs.spark.history.log_ranges import LogRangeSource, plan_read, source_name
from dibs.spark.schemas import struct_type
from dibs.storage.registry import open_storage
from dibs_conformance.servers import RedisServer

if TYPE_CHECKING:
    import pyarrow as pa

NOW = 1_795_132_800_000
HOUR = 3_600_000
T = TypeVar("T")


async def cancelled(url: str, queue: str, *ids: str, now: int) -> None:
    """One event for each id: a job that was cancelled before anybody claimed it."""
    async with open_storage(url, clock="manual") as storage:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=now)
        await storage.cancel(queue, ids, now=now)


async def trimmed(url: str, queue: str, now: int) -> None:
    async with open_storage(url, clock="manual") as storage:
        await storage.configure(queue, SettingsPatch(log_age=HOUR), now=now)
        await storage.prune(queue, 100, now=now)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file:{tmp_path}/jobs"
    asyncio.run(cancelled(url, "mail", "a", now=NOW))
    return url


def test_the_first_time_it_is_all_there_is(url: str) -> None:
    seen = plan_read(url, {})

    (stretch,) = seen.ranges
    assert ("mail", None, stretch.until) == (stretch.queue, stretch.after, seen.offsets["mail"])


def test_nothing_new_is_nothing_to_read(url: str) -> None:
    offsets = plan_read(url, {}).offsets

    assert ((), offsets, ()) == (plan_read(url, offsets).ranges, plan_read(url, offsets).offsets, ())


def test_it_goes_on_where_it_was(url: str) -> None:
    offsets = plan_read(url, {}).offsets
    asyncio.run(cancelled(url, "mail", "b", now=NOW + 1))
    asyncio.run(cancelled(url, "post", "c", now=NOW + 2))
    seen = plan_read(url, offsets)

    assert [("mail", offsets["mail"]), ("post", None)] == [(one.queue, one.after) for one in seen.ranges]
    assert all(one.after is None or one.after < one.until for one in seen.ranges)


def test_only_the_queues_that_are_meant_are_read(url: str) -> None:
    asyncio.run(cancelled(url, "post", "c", now=NOW + 2))

    assert ["post"] == [one.queue for one in plan_read(url, {}, ["post"]).ranges]


def test_what_was_trimmed_unread_is_a_gap(url: str) -> None:
    offsets = plan_read(url, {}).offsets
    asyncio.run(cancelled(url, "mail", "b", now=NOW + 1))
    asyncio.run(cancelled(url, "mail", "c", now=NOW + 3 * HOUR))
    asyncio.run(trimmed(url, "mail", NOW + 3 * HOUR))
    seen = plan_read(url, offsets)

    assert ("mail",) == seen.gaps
    assert [None] == [one.after for one in seen.ranges]


def test_a_log_that_ends_before_its_offset_is_refused(url: str, tmp_path: Path) -> None:
    later = f"file:{tmp_path}/later"
    asyncio.run(cancelled(later, "mail", "a", now=NOW + HOUR))

    with pytest.raises(Refused, match="ends before the offset"):
        plan_read(url, plan_read(later, {}).offsets)


def test_a_task_holds_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its stretch: a batch is given away before the next page is asked for."""
    url, page = f"file:{tmp_path}/jobs", 10
    ids = [f"id {number}" for number in range(20 * page)]
    asyncio.run(cancelled(url, "mail", *ids, now=NOW))
    monkeypatch.setattr("dibs.spark.source.batch_reader.PAGE", page)
    asked, run = [], StorageConnection.run

    def counted(connection: StorageConnection, call: Coroutine[Any, Any, T]) -> T:
        asked.append(call)
        return run(connection, call)

    monkeypatch.setattr(StorageConnection, "run", counted)
    given = {"url": url, "plan": msgspec.json.encode(plan_read(url, {})).decode()}
    reader = LogRangeSource(given).reader(struct_type("events"))
    (share,) = reader.partitions()
    batches = cast("Iterator[pa.RecordBatch]", reader.read(share))
    rows, counts = [], []
    before = len(asked) + 1
    for batch in batches:
        rows.append(batch.num_rows)
        counts.append(len(asked) - before)

    assert [page] * 20 == rows
    assert [*range(1, 21)] == counts


async def test_it_can_be_asked_where_a_loop_runs(tmp_path: Path) -> None:
    """As in a notebook."""
    url = f"file:{tmp_path}/jobs"
    await cancelled(url, "mail", "a", now=NOW)

    assert ["mail"] == [one.queue for one in plan_read(url, {}).ranges]
    assert url == source_name(url)


def test_two_prefixes_are_two_places(redis_server: RedisServer) -> None:
    one, other = (source_name(f"{redis_server.url}?prefix={name}") for name in ("one", "other"))

    assert one != other
    assert one.endswith("prefix=one")
