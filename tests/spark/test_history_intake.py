"""Where an increment begins and ends in each log; no Spark is started for that."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import Request, SettingsPatch
from dibs.spark.history.intake import look, source_of
from dibs.storage.registry import open_storage
from dibs_conformance.servers import RedisServer

NOW = 1_795_132_800_000
HOUR = 3_600_000


async def cancelled(url: str, queue: str, id: str, now: int) -> None:
    """One event: a job that was cancelled before anybody claimed it."""
    async with open_storage(url, clock="manual") as storage:
        await storage.enqueue(queue, [Request(job=NewJob(id=id))], now=now)
        await storage.cancel(queue, [id], now=now)


async def trimmed(url: str, queue: str, now: int) -> None:
    async with open_storage(url, clock="manual") as storage:
        await storage.configure(queue, SettingsPatch(log_age=HOUR), now=now)
        await storage.prune(queue, 100, now=now)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file:{tmp_path}/jobs"
    asyncio.run(cancelled(url, "mail", "a", NOW))
    return url


def test_the_first_time_it_is_all_there_is(url: str) -> None:
    seen = look(url, {})

    (stretch,) = seen.stretches
    assert ("mail", None, stretch.until) == (stretch.queue, stretch.after, seen.offsets["mail"])


def test_nothing_new_is_nothing_to_read(url: str) -> None:
    offsets = look(url, {}).offsets

    assert ((), offsets, ()) == (look(url, offsets).stretches, look(url, offsets).offsets, ())


def test_it_goes_on_where_it_was(url: str) -> None:
    offsets = look(url, {}).offsets
    asyncio.run(cancelled(url, "mail", "b", NOW + 1))
    asyncio.run(cancelled(url, "post", "c", NOW + 2))
    seen = look(url, offsets)

    assert [("mail", offsets["mail"]), ("post", None)] == [(one.queue, one.after) for one in seen.stretches]
    assert all(one.after is None or one.after < one.until for one in seen.stretches)


def test_only_the_queues_that_are_meant_are_read(url: str) -> None:
    asyncio.run(cancelled(url, "post", "c", NOW + 2))

    assert ["post"] == [one.queue for one in look(url, {}, ["post"]).stretches]


def test_what_was_trimmed_unread_is_a_gap(url: str) -> None:
    offsets = look(url, {}).offsets
    asyncio.run(cancelled(url, "mail", "b", NOW + 1))
    asyncio.run(cancelled(url, "mail", "c", NOW + 3 * HOUR))
    asyncio.run(trimmed(url, "mail", NOW + 3 * HOUR))
    seen = look(url, offsets)

    assert ("mail",) == seen.gaps
    assert [None] == [one.after for one in seen.stretches]


def test_a_log_that_ends_before_its_offset_is_refused(url: str, tmp_path: Path) -> None:
    later = f"file:{tmp_path}/later"
    asyncio.run(cancelled(later, "mail", "a", NOW + HOUR))

    with pytest.raises(Refused, match="ends before the offset"):
        look(url, look(later, {}).offsets)


async def test_it_can_be_asked_where_a_loop_runs(tmp_path: Path) -> None:
    """As in a notebook."""
    url = f"file:{tmp_path}/jobs"
    await cancelled(url, "mail", "a", NOW)

    assert ["mail"] == [one.queue for one in look(url, {}).stretches]
    assert url == source_of(url)


def test_two_prefixes_are_two_places(redis_server: RedisServer) -> None:
    one, other = (source_of(f"{redis_server.url}?prefix={name}") for name in ("one", "other"))

    assert one != other
    assert one.endswith("prefix=one")
