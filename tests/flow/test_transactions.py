"""A flow in a transaction of the caller, on Postgres, and a flow on Redis Cluster."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

import psycopg

from dibs_conformance.servers import PostgresServer, RedisCluster
from tests.flow.tasks import FAILING, Tasks


async def test_a_flow_is_enqueued_by_the_commit_of_the_caller(postgres_server: PostgresServer) -> None:
    tasks = Tasks(f"{postgres_server.url}?schema=flow_{os.urandom(4).hex()}")
    async with tasks.app, await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
        flow = tasks.app.flow(id="kept")
        flow.returns(flow.add(tasks.load.bind(tasks.mark, 4)))
        await flow.enqueue(connection=connection)
        await connection.rollback()
        assert await tasks.app.get_flow("kept").status() is None
        ticket = await flow.enqueue(connection=connection)
        await connection.commit()
        await tasks.app.work(until="empty", handle_signals=False)

        assert 8 == await ticket.result(wait=10)


async def test_a_flow_runs_on_a_cluster(redis_cluster: RedisCluster) -> None:
    tasks = Tasks(f"{redis_cluster.url}?prefix=flow_{os.urandom(4).hex()}")
    async with tasks.app:
        work = asyncio.create_task(tasks.app.work(handle_signals=False))
        try:
            parent = await run_flow(tasks)
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await work

    assert 112 == parent


async def run_flow(tasks: Tasks) -> int:
    FAILING.add(f"{tasks.mark} 9")
    inner = tasks.app.flow()
    parts = [inner.add(tasks.load.bind(tasks.mark, number)) for number in range(4)]
    inner.returns(inner.add(tasks.summarise.bind([part.output for part in parts])))
    outer = tasks.app.flow()
    bad = outer.add(tasks.load.bind(tasks.mark, 9))
    first = outer.add(inner)
    last = outer.add(tasks.summarise.bind([first.output, 100]), after=[bad], on_failure="ignore")
    outer.returns(last)
    result: int = await (await outer.enqueue()).result(wait=10)
    return result
