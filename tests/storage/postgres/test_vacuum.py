"""The connection on which a storage vacuums is reused, replaced if lost, and closed when idle."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import psycopg
import pytest

from dibs.storage.postgres import PostgresStorage, vacuum

Sessions = Callable[[], Awaitable[list[int]]]


@pytest.fixture
def sessions(connect: Callable[[], Any], schema: str) -> Sessions:
    """Return a function that returns the process ids of the sessions whose last statement was the vacuum."""

    async def pids() -> list[int]:
        connection: psycopg.AsyncConnection[Any] = await connect()
        found = await connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE query LIKE 'VACUUM%%' AND strpos(query, %s) > 0",
            [f'"{schema}".live'],
        )
        rows = await found.fetchall()
        await connection.close()
        return [pid for (pid,) in rows]

    return pids


async def test_vacuums_in_short_succession_use_one_session(
    storage: PostgresStorage, sessions: Sessions
) -> None:
    await storage._vacuum.run()
    first = await sessions()
    await storage._vacuum.run()

    assert len(first) == 1
    assert first == await sessions()


async def test_a_lost_session_is_replaced(
    storage: PostgresStorage, sessions: Sessions, connect: Callable[[], Any]
) -> None:
    await storage._vacuum.run()
    (first,) = await sessions()
    connection = await connect()
    await connection.execute("SELECT pg_terminate_backend(%s)", [first])
    await until_none(sessions)
    await storage._vacuum.run()

    (second,) = await sessions()
    assert first != second


async def test_the_session_ends_after_a_pause_and_with_the_storage(
    storage: PostgresStorage, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage._vacuum.run()
    assert len(await sessions()) == 1
    await storage._vacuum.close()
    await until_none(sessions)

    monkeypatch.setattr(vacuum, "IDLE_SECONDS", 0)
    await storage._vacuum.run()
    await until_none(sessions)


async def until_none(sessions: Sessions) -> None:
    async with asyncio.timeout(30):
        while await sessions():  # noqa: ASYNC110 - the server sends no message when a session has ended
            await asyncio.sleep(0.02)
