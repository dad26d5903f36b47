"""Flows and batches whose nodes and callbacks go into queues with `max_waiting`."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import psycopg
import pytest

from dibs import Dibs, Refused, WaitTimeout
from dibs.model.requests import WhenFull
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs_conformance.servers import PostgresServer
from tests.background_worker import background_worker
from tests.flow.tasks import Tasks


@pytest.fixture
async def flows(any_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dibs]:
    monkeypatch.setattr("dibs.flow.running.evaluation.FULL_PAUSE", 0.01)
    async with Dibs(any_url, flows=True) as app:
        yield app


async def double(number: int) -> int:
    return 2 * number


async def add_up(numbers: list[int]) -> int:
    return sum(numbers)


async def report() -> None: ...


@pytest.mark.parametrize("when_full", ["refuse", "drop_new"])
async def test_the_nodes_of_a_flow_wait_for_room(flows: Dibs, when_full: WhenFull) -> None:
    part, total = flows.task(queue="narrow")(double), flows.task(queue="wide")(add_up)
    await part.queue.configure(max_waiting=2, when_full=when_full)
    flow = flows.flow()
    parts = [flow.add(part.bind(number)) for number in range(5)]
    flow.returns(flow.add(total.bind([one.output for one in parts])))
    ticket = await flow.enqueue()

    async with background_worker(flows):
        assert 20 == await ticket.result(wait=30)


async def test_a_full_queue_holds_back_no_node_of_another_queue(flows: Dibs) -> None:
    stuck, free = flows.task(queue="narrow")(double), flows.task(queue="wide")(double)
    await stuck.queue.configure(max_waiting=1, paused=True)
    await stuck.enqueue(0)
    flow = flows.flow()
    flow.add(stuck.bind(1))
    flow.add(free.options(id="free").bind(2))
    ticket = await flow.enqueue()

    async with background_worker(flows):
        async for event in free.queue.events():
            if event.kind == "completed":
                break
        await stuck.queue.configure(paused=False)
        await ticket.result(wait=30)


@pytest.mark.parametrize("when_full", ["refuse", "drop_new"])
async def test_a_callback_of_a_batch_waits_for_room(flows: Dibs, when_full: WhenFull) -> None:
    member, callback = flows.task(queue="wide")(double), flows.task(queue="narrow")(report)
    await callback.queue.configure(max_waiting=1, when_full=when_full, paused=True)
    await callback.enqueue()
    async with flows.batch(on_finish=callback.bind()) as batch:
        await batch.enqueue_many([member.bind(1)])

    async with background_worker(flows):
        with pytest.raises(WaitTimeout):
            await batch.ticket.result(wait=0.5)
        await callback.queue.configure(paused=False)
        await batch.ticket.result(wait=30)


@pytest.mark.parametrize("queue", [FLOWS, EVALUATIONS])
async def test_the_queues_of_flows_take_no_bound(flows: Dibs, queue: str) -> None:
    with pytest.raises(Refused, match="bound the queues of their nodes"):
        await flows.queue(queue).configure(max_waiting=10)


# -- A flow in a transaction of the caller, on Postgres ----------------------------------------------


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
