"""queasy: capacity, priorities, wake-ups, clients that come and go, versions."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, NotRunning, Queue, StorageTooNew, UnknownOption, open_storage
from dibs.storage.registry import scheme_of
from dibs.worker import run
from tests.lineage import actors
from tests.lineage.actors import play, told, work, working
from tests.lineage.places import NEWER
from tests.worker.faulty_storage import faulty_storage

# -- capacity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 10, 100])
async def test_a_queue_is_served_to_its_end_however_little_room_there_is(
    app: Dibs, queue: Queue, stage: actors.Stage, size: int
) -> None:
    """Design, decision 9: a process has 100 units, and a queue never drops out for want of them."""
    play(queue, size=size)
    await queue.enqueue_many([{"n": n} for n in range(130)])
    await work(app)

    assert (130, 130) == (len(stage.ran), (await queue.counts()).completed)
    assert 100 // size >= stage.most


async def test_the_higher_priority_is_served_first(app: Dibs, stage: actors.Stage) -> None:
    low, high = app.queue("low"), app.queue("high")
    play(low, size=100, queue_priority=99)
    play(high, size=100, queue_priority=101)
    for queue in (low, high):
        await queue.enqueue_many([queue.bind(n, id=f"{queue.name}{n}") for n in range(3)])
    await work(app)

    assert ["high0", "high1", "high2", "low0", "low1", "low2"] == stage.ran


async def test_equals_are_served_in_turn(
    app: Dibs, stage: actors.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently served that is at rest goes first: no queue waits for another to be empty.

    Short runs are claimed ahead, 10 ms of them at once, and these may go first: here that is all there is.
    """
    monkeypatch.setattr("dibs.worker.dispatch.queue_state.MAX_PREFETCH", 0)
    for name in "ab":
        queue = app.queue(name)
        play(queue, size=100)
        await queue.enqueue_many([queue.bind(n, id=f"{name}{n}") for n in range(20)])
    await work(app)

    half = [id[0] for id in stage.ran[:20]]
    assert 5 <= half.count("a") <= 15


async def test_a_large_job_gets_its_room(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Room is kept for it as small runs end, each in its turn; they do not go past it for ever."""
    small = app.queue("small")
    play(small, size=10)
    play(queue, size=100, queue_priority=200)
    await small.enqueue_many(
        [{"hold": True, "turns": 9 * n} for n in range(10)] + [{"turns": 5 + 7 * n % 41} for n in range(400)]
    )
    async with working(app):
        for _ in range(10):
            await stage.arrived()
        await queue.enqueue(1, id="large")
        stage.go.set()
        await told(queue, "completed")
        await told(small, "completed", 410)

    assert 10 <= stage.ran.index("large") < 400


# -- wake-ups --------------------------------------------------------------------------------------------


async def test_an_idle_worker_is_woken(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """By the enqueue itself, not by a poll: here that would come after a minute."""
    play(queue)
    async with working(app, poll=60):
        for number in range(3):
            ticket = await queue.enqueue(number)
            assert number == await ticket.result(actors.SOON)


async def test_a_worker_wakes_for_the_earliest_scheduled_job(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Also for one that was enqueued behind a later one; and none runs early."""
    play(queue)
    async with working(app, poll=60):
        await queue.enqueue(1, id="late", delay=0.3)
        await queue.enqueue(1, id="soon", delay=0.1)
        await told(queue, "completed", 2)

    assert ["soon", "late"] == stage.ran
    for event in await actors.read(queue, 2):
        assert event.claimed_at is not None
        assert event.run_at is not None
        assert event.claimed_at >= event.run_at


# -- clients ---------------------------------------------------------------------------------------------


async def test_a_place_is_a_url(storage_url: str, other_url: str) -> None:
    """Two apps at one URL share its jobs; another URL, or queue, is another place."""
    async with Dibs(storage_url) as one, Dibs(storage_url) as two, Dibs(other_url) as elsewhere:
        await one.queue("q").enqueue(1, id="a")

        assert await two.queue("q").get("a") is not None
        assert await two.queue("r").get("a") is None
        assert await elsewhere.queue("q").get("a") is None


def test_an_unknown_option_is_refused(storage_url: str) -> None:
    with pytest.raises(UnknownOption):
        open_storage(storage_url, nonsense=1)


async def test_an_app_is_open_at_first_use_and_says_when_it_is_not(storage_url: str) -> None:
    """Connected is what `async with` or an await has returned from; after close it is NotRunning."""
    app = Dibs(storage_url)
    with pytest.raises(NotRunning):
        app.storage  # noqa: B018 - asking is the case
    await app.queue("q").enqueue(1, id="a")
    assert app.storage.url
    await app.close()
    for call in (app.queue("q").enqueue(1), app.queue("q").cancel("a"), app.queue("q").counts()):
        with pytest.raises(NotRunning):
            await call
    async with app:
        assert app.storage.durability


async def test_a_lost_lease_stops_its_runs_and_starts_anew(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """The runs are interrupted and not settled; the worker goes on under a new lease."""
    play(queue)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage:
        renewed = await app.storage.renew(["q"], "never granted", 1)
        async with working(app, heartbeat=0.05, lease=0.3):
            await stage.arrived()
            storage.answer("renew", renewed)
            await stage.arrived()
            stage.go.set()
            await told(queue, "completed")

    assert ["a stopped"] == stage.notes
    assert ["stalled", "completed"] == [event.kind for event in await actors.read(queue, 2)]
    assert 2 == storage.calls.count("grant")


async def test_what_runs_longer_than_its_lease_is_kept_by_the_heartbeat(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """A lease is no limit on a run: it is renewed as long as the worker lives."""
    play(queue)
    ticket = await queue.enqueue({"hold": True})
    async with faulty_storage(app) as storage, working(app, lease=0.4, heartbeat=0.04):
        await stage.arrived()
        while storage.calls.count("renew") < 12:
            await storage.wait(["q"], timeout=0.02)
        stage.go.set()
        await ticket.result(actors.SOON)

    assert ["completed"] == [event.kind for event in await actors.read(queue, 1)]


async def test_a_worker_that_stops_gives_back_what_it_has(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Released: no retry, no stall, no pause, and its lease is gone."""
    play(queue)
    await queue.enqueue_many([{"hold": True}] * 5)
    stopping = asyncio.create_task(run(app, grace=0))
    for _ in range(5):
        await stage.arrived()
    await actors.ask_to_stop()
    report = await stopping

    states = [status async for status in queue.list("waiting")]
    assert [(0, 0, 0)] * 5 == [(status.attempts, status.retries, status.stalls) for status in states]
    assert 5 == report.queue("q").released
    assert [] == list(await app.storage.reap("q", 10))


async def test_what_a_newer_version_wrote_is_refused(
    storage_url: str, request: pytest.FixtureRequest
) -> None:
    """The same version may come back; a newer major one is named, and nothing is touched."""
    async with Dibs(storage_url) as app:
        await app.queue("q").enqueue(1)
        durable = app.storage.capabilities.durable
    async with Dibs(storage_url) as again:
        assert 1 == (await again.queue("q").counts()).waiting

    assert durable == (scheme_of(storage_url) in NEWER), "what lasts meets other versions"
    if durable:
        NEWER[scheme_of(storage_url)](storage_url, request)
        with pytest.raises(StorageTooNew):
            await Dibs(storage_url).queue("q").counts()


async def test_many_may_open_a_new_place_at_once(storage_url: str) -> None:
    """One lays it out, and all of them can use it."""

    async def use(number: int) -> None:
        async with open_storage(storage_url) as storage:
            await storage.counts(["q"])

    await asyncio.gather(*(use(number) for number in range(5)))


def test_limits_are_the_same_whoever_opens_it(app: Dibs) -> None:
    """Promise 8: what is refused does not depend on the storage."""
    from dibs.client.connection.coalescing import storage_limits
    from dibs.model.limits import LIMITS

    assert storage_limits(app.storage) == LIMITS
