"""A schedule continues after every disturbance of its workers and of its tick."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import combinations, islice, product

import pytest
from msgspec.structs import replace

from dibs.maintenance.reap import reap
from dibs.maintenance.ticks import apply_declared_schedule, enqueue_missing_tick
from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Reject,
    SettleAction,
    Settlement,
)
from dibs.model.schedule import TICK_ID, Every, Schedule, refuse_tick
from dibs.storage.registry import open_storage
from dibs.testing.clock import ManualClock
from tests.maintenance.world import (
    ACCIDENTS,
    ACTIONS,
    DISTURBANCES,
    INTERVAL,
    MINUTE,
    QUEUE,
    World,
    cancel,
    settle,
    work_once,
)

#: The start of each test, five minutes before the first tick.
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
START_MS = round(START.timestamp() * 1000)
FIRST = START_MS + INTERVAL


@asynccontextmanager
async def open_world() -> AsyncIterator[World]:
    clock = ManualClock(open_storage("memory:", clock="manual"), START)
    async with clock.storage:
        yield World(clock)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with open_world() as opened:
        yield opened


async def assert_schedule_continues(world: World, *, cancelled: int = 0) -> None:
    """After a minute there is a next tick, and this tick and its successor run when they are due."""
    await world.pass_time(MINUTE)
    await reap(world.storage, QUEUE)
    await enqueue_missing_tick(world.storage, QUEUE, world.schedule)
    for _ in range(2):
        tick, runs = await world.tick(), len(world.ran)
        assert tick.run is not None or tick.run_at <= world.clock.now_ms + (1 + cancelled) * INTERVAL
        await work_once(world, world.storage, Complete())
        assert runs < len(world.ran)
    tick = await world.tick()
    assert (None, b"{}", True) == (tick.run, tick.data.payload, tick.run_at > world.clock.now_ms)


async def count_steps(action: SettleAction) -> int:
    async with open_world() as world:
        await world.work_disturbed(action, {})
        return world.steps


async def disturb(action: SettleAction, number: int, *, each: int = 1) -> None:
    """Try every `each`-th combination of `number` disturbances and steps, each in a new world.

    The schedule continues after each. After ACCIDENTS it has a live tick at every step.
    """
    pairs = list(product(range(1, await count_steps(action) + 1), DISTURBANCES))
    for plan in islice(combinations(pairs, number), 0, None, each):
        if len({step for step, _ in plan}) < number:
            continue
        async with open_world() as world:
            try:
                await world.work_disturbed(action, dict(plan))
                await assert_schedule_continues(world, cancelled=number)
                if isinstance(action, Cancelled) or not {disturbance for _, disturbance in plan} <= set(
                    ACCIDENTS
                ):
                    continue
                assert [] == world.gaps
            except AssertionError as error:
                error.add_note(f"{action}: {[(step, disturbance.__name__) for step, disturbance in plan]}")
                raise


@pytest.mark.parametrize("action", ACTIONS, ids=str)
async def test_every_disturbance_at_every_step(action: SettleAction) -> None:
    await disturb(action, 1)


async def test_two_disturbances() -> None:
    await disturb(Complete(), 2, each=5)


@pytest.mark.chaos
@pytest.mark.parametrize("action", ACTIONS, ids=str)
async def test_two_disturbances_of_every_settlement(action: SettleAction) -> None:
    await disturb(action, 2)


@pytest.mark.chaos
async def test_three_disturbances() -> None:
    await disturb(Complete(), 3, each=53)


# -- one tick at a time ------------------------------------------------------------------------------


async def test_concurrent_calls_enqueue_one_tick(world: World) -> None:
    await asyncio.gather(*(enqueue_missing_tick(world.storage, QUEUE, world.schedule) for _ in range(10)))
    tick = await world.tick()

    assert (FIRST, 1) == (tick.run_at, tick.enqueues)
    assert 1 == (await world.storage.counts([QUEUE]))[QUEUE].waiting


# -- changed and removed declarations ----------------------------------------------------------------


async def start(world: World, schedule: Schedule | None) -> None:
    """Start a worker of a release that declares this schedule."""
    await apply_declared_schedule(world.storage, QUEUE, schedule, world.clock.now_ms)


async def claim_tick(world: World) -> Job:
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    return job


async def test_a_changed_interval_applies_when_a_worker_starts(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dibs")
    await start(world, world.schedule)
    await start(world, world.schedule)
    assert [] == caplog.messages
    await start(world, replace(world.schedule, times=Every(MINUTE)))

    assert [f"{QUEUE}: the schedule every {INTERVAL} ms is now every {MINUTE} ms"] == caplog.messages
    assert START_MS + MINUTE == (await world.tick()).run_at


async def test_a_worker_of_an_older_release_goes_on_with_the_newer_schedule(world: World) -> None:
    old, new = world.schedule, replace(world.schedule, times=Every(3 * INTERVAL))
    await start(world, old)
    await start(world, new)
    changed = await world.tick()
    await enqueue_missing_tick(world.storage, QUEUE, old)
    assert changed == await world.tick()
    await cancel(world)
    await enqueue_missing_tick(world.storage, QUEUE, old)

    assert changed.run_at + 3 * INTERVAL == (await world.tick()).run_at


async def test_an_interval_that_changes_during_a_run_applies_after_it(world: World) -> None:
    await start(world, world.schedule)
    job = await claim_tick(world)
    await start(world, replace(world.schedule, times=Every(4 * INTERVAL)))
    await settle(world, world.storage, job, Complete())

    assert FIRST % (4 * INTERVAL) != 0
    assert 0 == (await world.tick()).run_at % (4 * INTERVAL)


@pytest.mark.parametrize("active", [False, True])
async def test_a_removed_schedule_leaves_no_tick(
    world: World, caplog: pytest.LogCaptureFixture, *, active: bool
) -> None:
    caplog.set_level("INFO", "dibs")
    await start(world, world.schedule)
    job = await claim_tick(world) if active else None
    await start(world, None)
    if job is not None:
        await settle(world, world.storage, job, Complete())
        removed = await claim_tick(world)
        refused = refuse_tick(removed)
        assert refused is not None
        await settle(world, world.storage, removed, refused)
    # A worker of the older release enqueues no missing tick, and the next one that starts with it does.
    await enqueue_missing_tick(world.storage, QUEUE, world.schedule)

    assert await world.current_tick() is None
    assert f"{QUEUE}: the schedule every {INTERVAL} ms is removed: its task declares none" in caplog.messages
    await start(world, world.schedule)
    assert 0 == (await world.tick()).run_at % INTERVAL


async def test_a_worker_without_a_schedule_leaves_other_jobs_alone(world: World) -> None:
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK_ID))])
    await start(world, None)

    assert await world.current_tick() is not None


# -- ticks that users enqueue ------------------------------------------------------------------------


async def test_an_enqueued_tick_runs_now_and_the_next_at_its_time(world: World) -> None:
    await enqueue_missing_tick(world.storage, QUEUE, world.schedule)
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK_ID, data=JobData(payload=b"[]")))])
    await work_once(world, world.storage, Complete())

    assert FIRST - INTERVAL == world.ran[0][0]
    assert FIRST == (await world.tick()).run_at


async def test_a_tick_enqueued_during_a_run_is_not_lost(world: World) -> None:
    await enqueue_missing_tick(world.storage, QUEUE, world.schedule)
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK_ID, data=JobData(payload=b"[]")))])
    await settle(world, world.storage, job, Complete())
    promoted = await world.tick()

    assert (FIRST, b"[]") == (promoted.run_at, promoted.data.payload)
    await assert_schedule_continues(world)


async def test_a_tick_completed_without_a_next_tick_gets_one(world: World) -> None:
    """A worker without the schedule completed it; the kept outcome does not block the next tick."""
    await enqueue_missing_tick(world.storage, QUEUE, world.schedule)
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    assert job.run is not None
    await world.storage.settle(QUEUE, [Settlement(id=TICK_ID, fence=job.run.fence, action=Complete())])
    [refused] = await world.storage.enqueue(
        QUEUE, [EnqueueRequest(job=NewJob(id=TICK_ID), on_conflict=Reject())]
    )

    assert "completed" == refused.status
    assert await enqueue_missing_tick(world.storage, QUEUE, world.schedule)
    await assert_schedule_continues(world)
