"""Pools of psycopg_pool that are handed over: their settings are used, their connections are not."""

from __future__ import annotations

import asyncio
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from dibs import Dibs
from dibs.errors import ConfigurationError
from dibs_conformance.servers import PostgresServer

SHARED_SCHEMA = "pools"


async def double(number: int) -> int:
    return 2 * number


def pool_of(form: str, server: PostgresServer) -> Any:
    """Return a pool, not opened, whose settings are values or functions."""
    params: dict[str, Any] = {**conninfo_to_dict(server.url)}
    secret = params.pop("password")
    conninfo = psycopg.conninfo.make_conninfo(**params)

    async def kwargs() -> dict[str, Any]:
        return {"password": secret}

    match form:
        case "values":
            return AsyncConnectionPool(
                conninfo,
                kwargs={"password": secret, "row_factory": dict_row, "autocommit": False},
                open=False,
            )
        case "blocking":
            return ConnectionPool(server.url, kwargs={"options": "-c statement_timeout=9s"}, open=False)
        case "a function":
            return AsyncConnectionPool(lambda: server.url, open=False)
        case _:
            return AsyncConnectionPool(conninfo, kwargs=kwargs, open=False)


@pytest.mark.parametrize("form", ["values", "blocking", "a function", "an async function"])
async def test_jobs_go_all_the_way_with_the_settings_of_a_pool(
    form: str, postgres_server: PostgresServer
) -> None:
    pool = pool_of(form, postgres_server)
    app = Dibs.from_pool(pool, schema=SHARED_SCHEMA, max_connections=2)
    task = app.task(queue=f"pool-{form}")(double)
    async with app:
        ticket = await task.enqueue(21)
        await app.work(until="empty")

        assert 42 == await ticket.result(5)
    assert postgres_server.password not in f"{app!r} {app._storage_handle!r}"


async def test_calls_wait_for_their_turn_if_all_connections_are_in_use(
    postgres_server: PostgresServer,
) -> None:
    url = f"{postgres_server.url}?schema={SHARED_SCHEMA}&max_connections=1&application_name=narrow"
    count = b"SELECT count(*) FROM pg_stat_activity WHERE application_name = 'narrow'"
    async with Dibs(url) as app:
        calls = [app.queue(f"narrow{number}").enqueue("data") for number in range(30)]
        tickets = await asyncio.gather(*calls)
        async with await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
            row = await (await connection.execute(count)).fetchone()

    assert 30 == len(tickets)
    assert (1,) == row


async def test_the_pool_stays_open(postgres_server: PostgresServer) -> None:
    async with AsyncConnectionPool(postgres_server.url, min_size=1, max_size=1) as pool:
        # The pool has one connection, which is in use while the app enqueues.
        async with Dibs.from_pool(pool, schema=SHARED_SCHEMA) as app, pool.connection():
            await app.queue("pool-open").enqueue("data")
        async with pool.connection() as connection:
            row = await (await connection.execute("SELECT 1")).fetchone()

    assert (1,) == row


async def test_a_blocking_transaction_refuses_an_async_function(postgres_server: PostgresServer) -> None:
    app = Dibs.from_pool(pool_of("an async function", postgres_server), schema=SHARED_SCHEMA)
    async with app:
        storage = app.storage
        with pytest.raises(ConfigurationError, match="async function"):
            storage.register_queues_blocking(["pool-blocking"])  # type: ignore[attr-defined]


def test_other_objects_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="class Connection"):
        Dibs.from_pool(psycopg.Connection.__new__(psycopg.Connection))
    with pytest.raises(ConfigurationError, match="a PoolTimeout is not a pool"):
        Dibs.from_pool(__import__("psycopg_pool").PoolTimeout())
