"""beequeue and bee-queue: events, stalls, listings, health, connections, and how a worker closes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import dibs
from dibs import Dibs, NotRunning, Queue, StorageUnavailable
from dibs.model.requests import RetryLater
from dibs.model.results import State
from dibs.worker import run
from tests.lineage import actors
from tests.lineage.actors import Crop, claimed, play, told, work, working
from tests.lineage.clerk import Clerk
from tests.worker.faulty_storage import faulty_storage

# -- stalls ------------------------------------------------------------------------------------------------


async def test_one_look_finds_a_stalled_job(clerk: Clerk) -> None:
    """As soon as the lease is over, by the storage's clock; found once, however many look."""
    await clerk.put()
    await clerk.take(await clerk.lease(5000))
    clerk.now += 4999
    assert [] == await clerk.reap()
    clerk.now += 1

    assert ["a"] == [reaped.id for reaped in await clerk.reap()]
    assert [] == await clerk.reap()
    assert ["stalled"] == await clerk.kinds()


async def test_a_stalled_job_goes_behind_what_waits(clerk: Clerk) -> None:
    await clerk.put("a")
    await clerk.take(await clerk.lease(10))
    await clerk.put("b")
    clerk.now += 10
    await clerk.reap()
    await clerk.lease()

    assert ["b", "a"] == [job.id for job in await clerk.claim()]


async def test_every_stall_counts(clerk: Clerk) -> None:
    """So that a job which kills its workers can come to an end."""
    await clerk.put()
    for _ in range(4):
        await clerk.stall()

    assert (4, 4) == ((await clerk.current()).stalls, (await clerk.current()).attempts)


async def test_a_worker_looks_for_stalls_when_it_begins(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """And every heartbeat from then on; nobody has to call for it."""
    await queue.enqueue(1, id="a")
    lease = (await app.storage.grant(["q"], 1, "gone")).lease
    while not (await app.storage.claim("q", lease, 1)).jobs:
        lease = (await app.storage.grant(["q"], 20, "gone")).lease
    play(queue)
    async with working(app, heartbeat=0.02, lease=5):
        await told(queue, "completed")

    assert ["stalled", "completed"] == [event.kind for event in await actors.read(queue, 2)]


# -- what is there -----------------------------------------------------------------------------------------


async def test_health_counts_every_state(queue: Queue) -> None:
    """The delayed among them, which are waiting too."""
    for number in range(3):
        await queue.enqueue(number)
    await queue.enqueue(1, delay=60)
    await (await claimed(queue)).complete()
    await (await claimed(queue)).fail("no")
    await claimed(queue)

    counts = await queue.counts()
    assert (1, 1, 1, 1, 1) == (
        counts.waiting,
        counts.scheduled,
        counts.active,
        counts.completed,
        counts.failed,
    )


async def test_ids_are_listed_by_state(queue: Queue) -> None:
    """waiting, scheduled, active, completed, failed and more; of one id `get` tells the state."""
    for id in ("done", "failed", "active"):
        await queue.enqueue(1, id=id)
        claim = await claimed(queue)
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
    """Each id by itself, in every state, the delayed too; nothing is left that could come back."""
    for id in ("done", "active"):
        await queue.enqueue(1, id=id)
        claim = await claimed(queue)
        if id == "done":
            await claim.complete()
    await queue.enqueue(1, id="later", delay=60)
    await queue.enqueue(1, id="next")
    for state in ("waiting", "active", "blocked", "completed", "failed", "cancelled"):
        for id in [status.id async for status in queue.list(state)]:
            await queue.forget(id)

    counts = await queue.counts()
    assert 0 == counts.waiting + counts.active + counts.completed + counts.failed


async def test_a_job_tells_when_it_was_made_and_why_it_failed(queue: Queue) -> None:
    """The time of its enqueue; the error of its latest run with type, message, traceback and cause."""
    await queue.enqueue(1, id="a")
    claim = await claimed(queue)
    try:
        actors.stumble()
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
    assert "in stumble" in status.error.traceback
    assert status.enqueued_at is not None


async def test_results_come_back_as_their_type(app: Dibs, stage: actors.Stage) -> None:
    """Types are checked where they are written, and true at run time."""
    task = app.task(actors.cropped)
    ticket = await task.enqueue(3)
    await work(app)

    assert Crop(3, 7) == await ticket.result(0)
    assert (Path(dibs.__file__).parent / "py.typed").exists()


# -- connections and the end -------------------------------------------------------------------------------


async def test_all_queues_of_an_app_share_its_storage(app: Dibs) -> None:
    """One connection for all; a second app on the loop has its own."""
    async with Dibs(app.url) as other:
        storages = {id(await app.queue(name)._client.storage()) for name in "abc"}
        assert {id(app.storage)} == storages
        assert other.storage is not app.storage


async def test_a_worker_survives_a_storage_that_is_away(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """It rests, each time longer, and goes on; what ended meanwhile is told again."""
    play(queue)
    async with faulty_storage(app) as storage:
        for _ in range(2):
            storage.fail("claim", StorageUnavailable("away"))
        storage.fail("settle_and_claim", StorageUnavailable("away"))
        storage.fail("settle", StorageUnavailable("away"))
        await queue.enqueue(1, id="a")
        await work(app)

    assert ["completed"] == [event.kind for event in await actors.read(queue, 1)]


async def test_closing_waits_for_what_runs(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """It claims no more, and what runs has its grace to end; what waits stays."""
    play(queue, size=100)
    await queue.enqueue({"hold": True}, id="a")
    await queue.enqueue(1, id="b")
    closing = asyncio.create_task(run(app, grace=actors.SOON))
    await stage.arrived()
    await actors.ask_to_stop()
    assert not closing.done()
    stage.go.set()
    report = await closing

    assert (["a"], 1, 0) == (stage.ran, report.queue("q").completed, report.queue("q").released)
    assert 1 == (await queue.counts()).waiting


async def test_what_runs_longer_than_the_grace_is_released(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Not stalled and not lost: it waits as before its claim, and its late word counts for nothing."""
    play(queue)
    await queue.enqueue({"hold": True}, id="a")
    closing = asyncio.create_task(run(app, grace=0.01))
    await stage.arrived()
    await actors.ask_to_stop()
    await closing

    status = await queue.get("a")
    assert status is not None
    assert ("waiting", 0, 0) == (status.state, status.attempts, status.stalls)


async def test_closing_twice_is_closing(storage_url: str) -> None:
    """And every use afterwards says that it is not running."""
    app = Dibs(storage_url)
    await app.open()
    await asyncio.gather(app.close(), app.close())
    with pytest.raises(NotRunning):
        await app.queue("q").enqueue(1)


async def test_a_handler_never_ends_its_worker(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Whatever it raises, SystemExit too, is its job's error; `def` and `async def` alike."""
    play(queue, max_retries=0)
    await queue.enqueue({"exit": True}, id="a")
    await queue.enqueue(1, id="b")
    await work(app)

    assert (1, 1) == ((await queue.counts()).failed, (await queue.counts()).completed)


async def test_a_retry_by_hand_is_told_too(clerk: Clerk) -> None:
    await clerk.put()
    await clerk.settle(await clerk.take(), RetryLater(delay=0))

    assert ["retried"] == await clerk.kinds()


async def test_every_handle_has_a_blocking_twin(app: Dibs, queue: Queue) -> None:
    """From any thread, on the loop where the app is open."""

    def block() -> object:
        ticket = app.sync.queue("q").enqueue(1, id="a")
        with queue.sync.receive(max_jobs=1, wait=0) as claims:
            for claim in claims:
                claim.complete("done")
        return ticket.result(0)

    assert "done" == await asyncio.to_thread(block)
