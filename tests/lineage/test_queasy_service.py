"""queasy: capacity, priorities, wake-ups, clients and versions."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, NotRunning, Queue, StorageTooNew, UnknownOption, open_storage
from dibs.storage.registry import parse_scheme
from dibs.worker import run
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import run_until_empty, running_worker, set_handler, wait_for_event
from tests.lineage.storage_urls import MARK_AS_NEWER
from tests.worker.faulty_storage import faulty_storage

# -- capacity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 10, 100])
async def test_a_queue_is_served_to_its_end_however_little_room_there_is(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, size: int
) -> None:
    """A process has 100 capacity units, and runs all jobs of every size."""
    set_handler(queue, size=size)
    await queue.enqueue_many([{"n": n} for n in range(130)])
    await run_until_empty(app)

    assert (130, 130) == (len(record.ran), (await queue.counts()).completed)
    assert 100 // size >= record.max_active


async def test_the_higher_priority_is_served_first(
    app: Dibs, record: scripted_handlers.HandlerRecord
) -> None:
    low, high = app.queue("low"), app.queue("high")
    set_handler(low, size=100, queue_priority=99)
    set_handler(high, size=100, queue_priority=101)
    for queue in (low, high):
        await queue.enqueue_many([queue.bind(n, id=f"{queue.name}{n}") for n in range(3)])
    await run_until_empty(app)

    assert ["high0", "high1", "high2", "low0", "low1", "low2"] == record.ran


async def test_equals_are_served_in_turn(
    app: Dibs, record: scripted_handlers.HandlerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker claims from the least recently served idle queue; no queue waits until another is empty.

    Short runs are prefetched, 10 ms at a time, and run first. These jobs are so short that all of them would
    be prefetched, so the test disables it.
    """
    monkeypatch.setattr("dibs.worker.dispatch.queue_state.MAX_PREFETCH", 0)
    for name in "ab":
        queue = app.queue(name)
        set_handler(queue, size=100)
        await queue.enqueue_many([queue.bind(n, id=f"{name}{n}") for n in range(20)])
    await run_until_empty(app)

    half = [id[0] for id in record.ran[:20]]
    assert 5 <= half.count("a") <= 15


async def test_a_large_job_gets_its_room(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Capacity is reserved for the large job as small runs end."""
    small = app.queue("small")
    set_handler(small, size=10)
    set_handler(queue, size=100, queue_priority=200)
    await small.enqueue_many(
        [{"hold": True, "loop_turns": 9 * n} for n in range(10)]
        + [{"loop_turns": 5 + 7 * n % 41} for n in range(400)]
    )
    async with running_worker(app):
        for _ in range(10):
            await record.wait_for_hold()
        await queue.enqueue(1, id="large")
        record.release.set()
        await wait_for_event(queue, "completed")
        await wait_for_event(small, "completed", 410)

    assert 10 <= record.ran.index("large") < 400


# -- wake-ups --------------------------------------------------------------------------------------------


async def test_an_idle_worker_is_woken(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The enqueue wakes the worker; the next poll is a minute later."""
    set_handler(queue)
    async with running_worker(app, poll=60):
        for number in range(3):
            ticket = await queue.enqueue(number)
            assert number == await ticket.result(scripted_handlers.TIMEOUT)


async def test_a_worker_wakes_for_the_earliest_scheduled_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The earliest job may be enqueued after a later one. No job runs early."""
    set_handler(queue)
    async with running_worker(app, poll=60):
        await queue.enqueue(1, id="late", delay=0.3)
        await queue.enqueue(1, id="soon", delay=0.1)
        await wait_for_event(queue, "completed", 2)

    assert ["soon", "late"] == record.ran
    for event in await scripted_handlers.read_events(queue, 2):
        assert event.claimed_at is not None
        assert event.run_at is not None
        assert event.claimed_at >= event.run_at


# -- clients ---------------------------------------------------------------------------------------------


async def test_a_place_is_a_url(storage_url: str, other_url: str) -> None:
    """Two apps with the same URL share their jobs; another URL or queue has other jobs."""
    async with Dibs(storage_url) as one, Dibs(storage_url) as two, Dibs(other_url) as elsewhere:
        await one.queue("q").enqueue(1, id="a")

        assert await two.queue("q").get("a") is not None
        assert await two.queue("r").get("a") is None
        assert await elsewhere.queue("q").get("a") is None


def test_an_unknown_option_is_refused(storage_url: str) -> None:
    with pytest.raises(UnknownOption):
        open_storage(storage_url, nonsense=1)


async def test_an_app_is_open_at_first_use_and_says_when_it_is_not(storage_url: str) -> None:
    """The first call opens the app. Before it and after close(), the app raises NotRunning."""
    app = Dibs(storage_url)
    with pytest.raises(NotRunning):
        app.storage  # noqa: B018 - the access is the test
    await app.queue("q").enqueue(1, id="a")
    assert app.storage.url
    await app.close()
    for call in (app.queue("q").enqueue(1), app.queue("q").cancel("a"), app.queue("q").counts()):
        with pytest.raises(NotRunning):
            await call
    async with app:
        assert app.storage.durability


async def test_a_lost_lease_stops_its_runs_and_starts_anew(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The runs are cancelled without a settlement, and the worker continues with a new lease."""
    set_handler(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage:
        renewed = await app.storage.renew(["q"], "never granted", 1)
        async with running_worker(app, heartbeat=0.05, lease=0.3):
            await record.wait_for_hold()
            storage.answer("renew", renewed)
            await record.wait_for_hold()
            record.release.set()
            await wait_for_event(queue, "completed")

    assert ["a stopped"] == record.notes
    assert ["stalled", "completed"] == [event.kind for event in await scripted_handlers.read_events(queue, 2)]
    assert 2 == storage.calls.count("grant")


async def test_what_runs_longer_than_its_lease_is_kept_by_the_heartbeat(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The worker renews the lease, so a run can be longer than its lease."""
    set_handler(queue)
    ticket = await queue.enqueue({"hold": True})
    async with faulty_storage(app) as storage, running_worker(app, lease=0.4, heartbeat=0.04):
        await record.wait_for_hold()
        while storage.calls.count("renew") < 12:
            await storage.wait(["q"], timeout=0.02)
        record.release.set()
        await ticket.result(scripted_handlers.TIMEOUT)

    assert ["completed"] == [event.kind for event in await scripted_handlers.read_events(queue, 1)]


async def test_a_worker_that_stops_gives_back_what_it_has(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The jobs are released without a retry, a stall or a delay, and the lease is removed."""
    set_handler(queue)
    await queue.enqueue_many([{"hold": True}] * 5)
    stopping = asyncio.create_task(run(app, grace=0))
    for _ in range(5):
        await record.wait_for_hold()
    await scripted_handlers.send_sigterm()
    report = await stopping

    states = [status async for status in queue.list("waiting")]
    assert [(0, 0, 0)] * 5 == [(status.attempts, status.retries, status.stalls) for status in states]
    assert 5 == report.queue("q").released
    assert [] == list(await app.storage.reap("q", 10))


async def test_what_a_newer_version_wrote_is_refused(
    storage_url: str, request: pytest.FixtureRequest
) -> None:
    """A storage of the same version opens; a newer major version is refused and named."""
    async with Dibs(storage_url) as app:
        await app.queue("q").enqueue(1)
        durable = app.storage.capabilities.durable
    async with Dibs(storage_url) as again:
        assert 1 == (await again.queue("q").counts()).waiting

    assert durable == (parse_scheme(storage_url) in MARK_AS_NEWER), "what lasts meets other versions"
    if durable:
        MARK_AS_NEWER[parse_scheme(storage_url)](storage_url, request)
        with pytest.raises(StorageTooNew):
            await Dibs(storage_url).queue("q").counts()


async def test_many_may_open_a_new_place_at_once(storage_url: str) -> None:
    """One process creates the schema, and all of them can use it."""

    async def use(number: int) -> None:
        async with open_storage(storage_url) as storage:
            await storage.counts(["q"])

    await asyncio.gather(*(use(number) for number in range(5)))


def test_limits_are_the_same_whoever_opens_it(app: Dibs) -> None:
    """Promise 8: all storages have the same limits."""
    from dibs.client.connection.coalesced_calls import storage_limits
    from dibs.model.limits import LIMITS

    assert storage_limits(app.storage) == LIMITS
