"""@platformatic/job-queue: waits, recovery, names of workers, and the retention of ids."""

from __future__ import annotations

import asyncio
import inspect

import pytest

from dibs import Dibs, JobFailed, Queue, Reject
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    claim_one,
    read_events,
    run_until_empty,
    running_worker,
    send_sigterm,
    set_handler,
)


async def test_no_end_is_missed_between_the_enqueue_and_the_wait(queue: Queue) -> None:
    """The job may end before, during or after the beginning of the wait, with a large result, too."""
    for turns in range(12):
        ticket = await queue.enqueue(turns, id=str(turns))
        claim = await claim_one(queue)
        ending = asyncio.ensure_future(claim.complete("x" * 200_000))
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(scripted_handlers.TIMEOUT):
            assert 200_000 == len(await ticket.result(60))
        await ending


def test_a_wait_lasts_60_s_by_default(queue: Queue) -> None:
    for call in (queue.ticket("a", 0).result, queue.enqueue_and_wait):
        assert 60 == inspect.signature(call).parameters["wait"].default


async def test_a_waiter_gets_the_result_of_the_run_after_a_stall(queue: Queue, app: Dibs) -> None:
    """The wait lasts until the second run, after the lease of a dead worker has expired."""
    ticket = await queue.enqueue(1, id="a")
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    lease = (await app.storage.grant(["q"], 1, "died")).lease
    while not (await app.storage.claim("q", lease, 1)).jobs:
        lease = (await app.storage.grant(["q"], 20, "died")).lease
    async with asyncio.timeout(scripted_handlers.TIMEOUT), queue.receive(1, lease=0.3) as claims:
        claim = await anext(claims)
        await claim.complete(f"run {claim.attempt} after {claim.stalls} stall")

    assert "run 2 after 1 stall" == await waiting


async def test_a_worker_that_stops_leaves_its_jobs_to_others_at_once(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """After a stop no lease has to end first: another receiver claims the jobs without waiting."""
    set_handler(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with running_worker(app, grace=0) as worker:
        await record.wait_for_hold()
        await send_sigterm()
        await worker

    assert "a" == (await claim_one(queue)).id


async def test_a_worker_may_have_a_stable_name(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Two workers of one name do not disturb each other: leases have ids of their own."""
    set_handler(queue)
    tickets = await queue.enqueue_many([{"hold": True}] * 20)
    async with running_worker(app, name="pod-7"), running_worker(app, name="pod-7"):
        await record.wait_for_hold()
        record.release.set()
        for ticket in tickets:
            await ticket.result(scripted_handlers.TIMEOUT)

    assert {("pod-7", "completed")} == {(event.holder, event.kind) for event in await read_events(queue, 20)}
    assert 20 == len(record.ran)


async def test_a_repeated_request_answers_with_the_first_id(queue: Queue) -> None:
    """A lost reply is no reason to enqueue twice: the same request_key gives the same ticket."""
    first = await queue.enqueue(1, request_key="order 7")
    again = await queue.enqueue(1, request_key="order 7")

    assert (first.id, first.revision) == (again.id, again.revision)
    assert 1 == (await queue.counts()).waiting


async def test_a_failed_request_raises_and_a_duplicate_does_not(
    app: Dibs, record: scripted_handlers.HandlerRecord
) -> None:
    """A duplicate is a verdict, and an end without a result is an exception with its error."""
    task = app.task(max_retries=0)(scripted_handlers.always_failing)
    first = await task.options(id="a", on_conflict=Reject()).enqueue(5)
    second = await task.options(id="a", on_conflict=Reject()).enqueue(5)
    await run_until_empty(app)

    assert ("queued", "duplicate") == (first.verdict, second.verdict)
    for ticket in (first, second):
        with pytest.raises(JobFailed) as failed:
            await ticket.result(0)
        assert ("ValueError", "not 5") == (failed.value.error.type, failed.value.error.message)


async def test_jobs_survive_their_program(storage_url: str) -> None:
    """A job in a durable storage is there after its app has closed."""
    async with Dibs(storage_url) as app:
        await app.queue("q").enqueue(1, id="a")
        durable = app.storage.capabilities.durable
    async with Dibs(storage_url) as app:
        found = await app.queue("q").get("a")

    if durable:
        assert found is not None
        assert "waiting" == found.state
