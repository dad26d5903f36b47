"""A flow in a transaction of the caller, on Postgres."""

from __future__ import annotations

import os

import psycopg

from dibs_conformance.servers import PostgresServer
from tests.flow.tasks import Tasks


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
