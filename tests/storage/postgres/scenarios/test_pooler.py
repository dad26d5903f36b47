"""Storages behind a pooler in transaction mode: no session keeps a state of dibs after a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import psycopg
import pytest

from dibs import Dibs
from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage, open_url
from dibs_conformance.servers import PostgresServer, ServerUnavailable
from tests.storage.postgres.jobs import asked, claimed, done
from tests.storage.postgres.pooler import SESSIONS, PgBouncer, pooled

app = Dibs("memory:")


@app.task(queue="double")
async def double(number: int) -> int:
    return 2 * number


#: The state of a session: prepared statements, advisory locks, channels, and settings.
SESSION_STATE = """
SELECT (SELECT count(*) FROM pg_prepared_statements),
       (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*) FROM pg_listening_channels()),
       current_setting('search_path'), current_setting('plan_cache_mode'), current_setting('enable_seqscan')
"""


CLEAN = (0, 0, 0, '"$user", public', "auto", "on")


async def every_verb(storage: PostgresStorage) -> None:
    for _ in range(5):
        await storage.configure("q", SettingsPatch(log_level="all"))
        await storage.enqueue("q", [asked("a"), asked("b")])
        jobs = await claimed(storage)
        await storage.settle("q", [done(job) for job in jobs])
        await storage.get("q", ["a"])
        await storage.list("q", "completed")
        await storage.counts(["q"])
        await storage.events("q")
        await storage.reap("q", 10)
        await storage.forget("q", ["a", "b"])
        await storage.prune("q", 10)
        await storage.wait(["q"], timeout=0.001)


async def test_a_session_keeps_no_state_of_dibs(
    opening: Callable[..., PostgresStorage], monkeypatch: Any
) -> None:
    """dibs recognizes a pooler by a process id that is not that of the session. Then it prepares nothing."""
    storage = opening()
    queries = storage._server.queries
    made_up = queries["server"].replace(b"pg_backend_pid()", b"-1")
    monkeypatch.setitem(queries._filled, "server", made_up)
    async with storage:
        connections = storage._server.check_open()
        await every_verb(storage)

        assert not connections.prepares
        async with connections.borrow() as connection:
            left: Any = await (await connection.execute(SESSION_STATE)).fetchone()
    assert left == CLEAN


@pytest.fixture(params=["ours", "pgbouncer"])
async def pooled_url(
    request: pytest.FixtureRequest, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[str]:
    """The URL of a pooler with three sessions. The storage finds after 0.2 s that no notification arrives."""
    monkeypatch.setattr("dibs.storage.postgres.wakeups.listener.ECHO_SECONDS", 0.2)
    if request.param == "ours":
        async with pooled(postgres_server) as (url, pooler):
            yield url
            assert min(pooler.handed_out) > 0, "every session was used"
        return
    try:
        bouncer = PgBouncer(postgres_server)
        await asyncio.to_thread(bouncer.start)
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with bouncer:
        yield bouncer.url


async def test_every_verb_goes_through_a_pooler(pooled_url: str, schema: str) -> None:
    async with open_url(pooled_url, schema=schema) as storage:
        assert not storage._server.check_open().prepares
        await every_verb(storage)
        # The listener sends UNLISTEN on each session that the pooler gives it, until it meets its own.
        async with asyncio.timeout(30):
            while await session_states(storage) != {CLEAN}:  # noqa: ASYNC110 - the server has no event for it
                await asyncio.sleep(0.05)


async def session_states(storage: PostgresStorage) -> set[tuple[Any, ...]]:
    """Return the states of the sessions that the pooler gives to some reads, likely all of them."""
    query = SESSION_STATE.encode()
    return {(await storage._server.fetch(query, {}, writes=False))[0] for _ in range(2 * SESSIONS)}


async def test_missing_notifications_are_logged_once(
    pooled_url: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_url(pooled_url, schema=schema, poll=0.05) as storage:
        await storage.enqueue("q", [asked("a")])
        for _ in range(3):
            assert (await storage.wait(["q"], timeout=30)).woken

    assert 1 == sum("no wake-ups" in record.message for record in caplog.records)


async def test_workers_behind_a_pooler_do_their_work(pooled_url: str, schema: str) -> None:
    async with app.using(f"{pooled_url}?schema={schema}&poll=0.1"):
        work = asyncio.create_task(app.work(["double"]))
        tickets = [await double.enqueue(n) for n in range(20)]
        results = await asyncio.gather(*(ticket.result() for ticket in tickets))
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)

    assert [2 * n for n in range(20)] == results


async def test_an_enqueue_joins_a_transaction_through_a_pooler(pooled_url: str, schema: str) -> None:
    async with Dibs(f"{pooled_url}?schema={schema}") as there:
        queue = there.queue("q")
        connection = await psycopg.AsyncConnection.connect(pooled_url, prepare_threshold=None)
        async with connection:
            await queue.enqueue({"n": 1}, connection=connection)
            await connection.rollback()
            await queue.enqueue({"n": 2}, connection=connection)
            assert 0 == (await queue.counts()).waiting
            await connection.commit()
        assert 1 == (await queue.counts()).waiting

        # Concurrent calls, so that the pooler uses several sessions.
        await asyncio.gather(*(queue.enqueue({"n": n}, id=f"{n}") for n in range(3 * SESSIONS)))
        assert 1 + 3 * SESSIONS == (await queue.counts()).waiting
