"""beequeue and bee-queue: stalls, listings, health, connections and shutdown."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dibs
from dibs import Dibs, NotRunning, Queue, StorageUnavailable
from dibs.model.results import State
from dibs.worker import run
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    Crop,
    claim_one,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)
from tests.worker.faulty_storage import faulty_storage

# -- stalls ------------------------------------------------------------------------------------------------


async def test_a_worker_looks_for_stalls_when_it_begins(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A worker reaps at its start and at every heartbeat."""
    await queue.enqueue(1, id="a")
    lease = (await app.storage.grant(["q"], 1, "gone")).lease
    while not (await app.storage.claim("q", lease, 1)).jobs:
        lease = (await app.storage.grant(["q"], 20, "gone")).lease
    set_handler(queue)
    async with running_worker(app, heartbeat=0.02, lease=5):
        await wait_for_event(queue, "completed")

    assert ["stalled", "completed"] == [event.kind for event in await scripted_handlers.read_events(queue, 2)]


# -- counts, listings and status ---------------------------------------------------------------------------


async def test_health_counts_every_state(queue: Queue) -> None:
    """Scheduled jobs are counted, and are also waiting."""
    for number in range(3):
        await queue.enqueue(number)
    await queue.enqueue(1, delay=60)
    await (await claim_one(queue)).complete()
    await (await claim_one(queue)).fail("no")
    await claim_one(queue)

    counts = await queue.counts()
    assert (1, 1, 1, 1, 1) == (
        counts.waiting,
        counts.scheduled,
        counts.active,
        counts.completed,
        counts.failed,
    )


async def test_ids_are_listed_by_state(queue: Queue) -> None:
    """Each state can be listed."""
    for id in ("done", "failed", "active"):
        await queue.enqueue(1, id=id)
        claim = await claim_one(queue)
        if id == "done":
            await claim.complete()
        if id == "failed":
            await claim.fail("no")
    await queue.enqueue(1, id="later", delay=60)
    await queue.enqueue(1, id="next")

    expected: dict[State, set[str]] = {
        "waiting": {"later", "next"},
        "scheduled": {"later"},
        "active": {"active"},
        "completed": {"done"},
        "failed": {"failed"},
    }
    for state, ids in expected.items():
        assert ids == {status.id async for status in queue.list(state)}


async def test_a_queue_can_be_emptied_to_the_last(queue: Queue) -> None:
    """clear removes the ids in every state, also scheduled jobs, and active jobs on request."""
    for id in ("done", "active"):
        await queue.enqueue(1, id=id)
        claim = await claim_one(queue)
        if id == "done":
            await claim.complete()
    await queue.enqueue(1, id="later", delay=60)
    await queue.enqueue(1, id="next")

    assert 2 == await queue.clear()
    assert ["active"] == [status.id async for status in queue.list("active", limit=1)]
    assert 1 == await queue.clear(running=True)
    counts = await queue.counts()
    assert 0 == counts.waiting + counts.active + counts.completed + counts.failed


async def test_a_job_tells_when_it_was_made_and_why_it_failed(queue: Queue) -> None:
    """The status has the time of the enqueue, and the last error with type, message, traceback and cause."""
    await queue.enqueue(1, id="a")
    claim = await claim_one(queue)
    try:
        scripted_handlers.raise_with_cause()
    except ValueError as error:
        await claim.retry(delay=0, error=error)
    status = await queue.get("a")

    assert status is not None
    assert status.error is not None
    assert status.error.cause is not None
    assert ("ValueError", "outer", "KeyError") == (
        status.error.type,
        status.error.message,
        status.error.cause.type,
    )
    assert "in raise_with_cause" in status.error.traceback
    assert status.enqueued_at is not None


async def test_results_come_back_as_their_type(app: Dibs, record: scripted_handlers.HandlerRecord) -> None:
    """The result has the annotated type, and the package ships its types."""
    task = app.task(scripted_handlers.crop)
    ticket = await task.enqueue(3)
    await run_until_empty(app)

    assert Crop(3, 7) == await ticket.result(0)
    assert (Path(dibs.__file__).parent / "py.typed").exists()


# -- connections and shutdown ------------------------------------------------------------------------------


async def test_all_queues_of_an_app_share_its_storage(app: Dibs) -> None:
    """The queues share one storage; a second app on the same loop opens another."""
    async with Dibs(app.url) as other:
        storages = {id(await app.queue(name)._client.storage()) for name in "abc"}
        assert {id(app.storage)} == storages
        assert other.storage is not app.storage


async def test_a_worker_survives_a_storage_that_is_away(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The worker retries with growing pauses, and sends the results of ended runs again."""
    set_handler(queue)
    async with faulty_storage(app) as storage:
        for _ in range(2):
            storage.fail("claim", StorageUnavailable("away"))
        storage.fail("settle_and_claim", StorageUnavailable("away"))
        storage.fail("settle", StorageUnavailable("away"))
        await queue.enqueue(1, id="a")
        await run_until_empty(app)

    assert ["completed"] == [event.kind for event in await scripted_handlers.read_events(queue, 1)]


async def test_closing_waits_for_what_runs(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The worker stops claiming, and active runs have the grace period to end. Waiting jobs stay."""
    set_handler(queue, size=100)
    await queue.enqueue({"hold": True}, id="a")
    await queue.enqueue(1, id="b")
    closing = asyncio.create_task(run(app, grace=scripted_handlers.TIMEOUT))
    await record.wait_for_hold()
    await scripted_handlers.send_sigterm()
    assert not closing.done()
    record.release.set()
    report = await closing

    assert (["a"], 1, 0) == (record.ran, report.queue("q").completed, report.queue("q").released)
    assert 1 == (await queue.counts()).waiting


async def test_what_runs_longer_than_the_grace_is_released(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The job is released: it waits as before its claim, without a stall."""
    set_handler(queue)
    await queue.enqueue({"hold": True}, id="a")
    closing = asyncio.create_task(run(app, grace=0.01))
    await record.wait_for_hold()
    await scripted_handlers.send_sigterm()
    await closing

    status = await queue.get("a")
    assert status is not None
    assert ("waiting", 0, 0) == (status.state, status.attempts, status.stalls)


async def test_closing_twice_is_closing(storage_url: str) -> None:
    """Closing twice is allowed; each later call raises NotRunning."""
    app = Dibs(storage_url)
    await app.open()
    await asyncio.gather(app.close(), app.close())
    with pytest.raises(NotRunning):
        await app.queue("q").enqueue(1)


async def test_a_handler_never_ends_its_worker(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Each exception of a handler, also SystemExit, is the error of its job."""
    set_handler(queue, max_retries=0)
    await queue.enqueue({"exit": True}, id="a")
    await queue.enqueue(1, id="b")
    await run_until_empty(app)

    assert (1, 1) == ((await queue.counts()).failed, (await queue.counts()).completed)


async def test_every_handle_has_a_blocking_twin(app: Dibs, queue: Queue) -> None:
    """A blocking handle can be used on any thread; its calls run on the app's event loop."""

    def block() -> object:
        ticket = app.sync.queue("q").enqueue(1, id="a")
        with queue.sync.receive(max_jobs=1, wait=0) as claims:
            for claim in claims:
                claim.complete("done")
        return ticket.result(0)

    assert "done" == await asyncio.to_thread(block)
