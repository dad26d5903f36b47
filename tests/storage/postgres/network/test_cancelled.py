"""Calls that are cancelled during a statement: no other call gets the reply, and the connection is kept."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Callable
from typing import Any

import pytest

from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked

#: Returns the process id of the session and the number `said`, after some seconds.
ECHO = b"SELECT pg_backend_pid(), %(said)s::bigint, pg_sleep(%(seconds)s)"


async def echo(storage: PostgresStorage, said: int, seconds: float = 0.0) -> tuple[int, int]:
    ((pid, back, _),) = await storage._server.fetch(ECHO, {"said": said, "seconds": seconds}, writes=False)
    return pid, back


async def sent(storage: PostgresStorage) -> None:
    """Return once a call has taken the idle connection and sent its statement."""
    connections = storage._server.check_open()
    while connections._idle:  # noqa: ASYNC110 - the driver has no callback for a sent statement
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)


async def test_its_connection_is_used_again(
    storage: PostgresStorage, caplog: pytest.LogCaptureFixture
) -> None:
    pid, _ = await echo(storage, 1)
    slow = asyncio.create_task(echo(storage, 2, seconds=0.5))
    await sent(storage)
    slow.cancel()
    await asyncio.gather(slow, return_exceptions=True)
    assert slow.cancelled()
    other, _ = await echo(storage, 3)
    assert other != pid, "a call got a connection whose last reply has not arrived"
    clearing = storage._server.check_open()._discarding
    await asyncio.gather(*clearing)

    assert {pid, other} >= {(await echo(storage, n))[0] for n in range(3)}
    assert pid in {connection.info.backend_pid for connection in storage._server.check_open()._idle}
    assert [] == [record.message for record in caplog.records if record.name == "psycopg"]


async def test_nobody_gets_the_reply_of_another(storage: PostgresStorage) -> None:
    luck = random.Random(7)
    for round_ in range(30):
        calls = [asyncio.create_task(echo(storage, 100 * round_ + n)) for n in range(8)]
        await asyncio.sleep(luck.random() * 0.003)
        for n in luck.sample(range(8), 4):
            calls[n].cancel()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        for n, answer in enumerate(answers):
            assert isinstance(answer, asyncio.CancelledError) or answer[1] == 100 * round_ + n  # type: ignore[index]

    assert 10 >= len(storage._server.check_open()._idle) + len(storage._server.check_open()._discarding)


async def test_a_statement_that_was_sent_takes_effect(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    """The caller is cancelled, and does not learn the outcome, as after a lost reply."""
    await storage.enqueue("q", [asked("first")])
    holder = await connect()
    await holder.execute("SELECT 1 FROM live WHERE id = 'first' FOR UPDATE")
    update = asyncio.create_task(storage.enqueue("q", [asked("first"), asked("second")]))
    await sent(storage)
    update.cancel()
    await asyncio.gather(update, return_exceptions=True)
    await holder.rollback()
    await asyncio.gather(*storage._server.check_open()._discarding)

    assert 2 == (await storage.counts(["q"]))["q"].waiting


def test_the_end_of_a_loop_is_silent(
    postgres_server: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio.run cancels a cancelled call a second time, while psycopg cleans up after the first one."""

    async def leave() -> None:
        async with open_url(postgres_server.url, schema=schema) as storage:
            slow = asyncio.create_task(echo(storage, 1, seconds=0.5))
            await sent(storage)
            slow.cancel()

    asyncio.run(leave())

    assert [] == [record.message for record in caplog.records if record.name in ("psycopg", "asyncio")]


def test_a_caller_that_outlives_the_storage_is_silent(
    postgres_server: PostgresServer, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the loop cancels the call after the close. The cleanup must not start a new task then."""

    async def leave() -> asyncio.Task[Any]:
        async with open_url(postgres_server.url, schema=schema) as storage:
            slow = asyncio.create_task(echo(storage, 1, seconds=30))
            await sent(storage)
        return slow

    slow = asyncio.run(leave())
    gc.collect()

    assert slow.cancelled()
    assert [] == [record.message for record in caplog.records if record.name in ("psycopg", "asyncio")]
