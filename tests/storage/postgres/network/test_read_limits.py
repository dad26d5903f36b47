"""Reads with a limit: the server ends them, also if their caller has gone, and writes have no limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs.errors import StorageBusy
from dibs.storage.postgres import PostgresStorage
from dibs.storage.read_limits import limited_reads
from tests.storage.postgres.jobs import asked

SLEEP = b"SELECT pg_sleep(%(seconds)s), current_setting('statement_timeout')"


async def sleep(storage: PostgresStorage, seconds: float, *, writes: bool = False) -> str:
    ((_, limit),) = await storage._server.fetch(SLEEP, {"seconds": seconds}, writes=writes)
    return str(limit)


async def running(connect: Callable[[], Any]) -> int:
    """Return the number of statements that sleep on the server."""
    watcher = await connect()
    cursor = await watcher.execute(
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE state = 'active' AND query LIKE 'SELECT pg_sleep%' AND pid != pg_backend_pid()"
    )
    (count,) = await cursor.fetchone()
    return int(count)


async def test_the_server_ends_a_slow_read(storage: PostgresStorage) -> None:
    with limited_reads(0.2), pytest.raises(StorageBusy, match="statement timeout"):
        await sleep(storage, 60)

    # The connection is as good as before, and has no limit of its own.
    assert "0" == await sleep(storage, 0)
    assert 1 == len(storage._server.check_open()._idle)


async def test_a_read_within_the_limit_has_its_answer(storage: PostgresStorage) -> None:
    await storage.enqueue("q", [asked("a")])
    with limited_reads(5):
        assert "5s" == await sleep(storage, 0)
        [slot] = await storage.get("q", ["a"])

    assert slot.current is not None


async def test_the_server_ends_a_read_whose_caller_has_gone(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    with limited_reads(1):
        call = asyncio.create_task(sleep(storage, 600))
        while not await running(connect):  # noqa: ASYNC110 - the server has no event for it
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    async with asyncio.timeout(60):
        while await running(connect):  # noqa: ASYNC110 - the same
            await asyncio.sleep(0.05)


async def test_a_write_has_no_limit(storage: PostgresStorage) -> None:
    with limited_reads(0.2):
        assert "0" == await sleep(storage, 0.4, writes=True)
