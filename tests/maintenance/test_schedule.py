"""A schedule lives: whatever happens to its workers, and whatever is done to its tick, the next one comes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import combinations, islice, product
from pathlib import Path

import pytest
from msgspec.structs import replace

from dibs.maintenance.reap import reap
from dibs.maintenance.schedule import plant
from dibs.model.job import JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Reject,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.model.schedule import TICK, Every
from dibs.storage.registry import open_storage
from dibs.testing.clock import ManualClock
from dibs_conformance.servers import PostgresServer, RedisServer
from tests.maintenance.shift import (
    ACCIDENTS,
    ACTS,
    ENDS,
    LENGTH,
    MINUTE,
    QUEUE,
    World,
    another,
    cancel,
    forget,
    settle,
    shift,
)

#: Five minutes to the first tick.
START = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIRST = round(START.timestamp() * 1000) + LENGTH


@asynccontextmanager
async def a_world(
    url: str = "memory:", *, catch_up: bool = True, own: Mapping[str, str] | None = None
) -> AsyncIterator[World]:
    clock = ManualClock(open_storage(url, clock="manual", **(own or {})), START)
    async with clock.storage:
        yield World(clock, catch_up=catch_up)


@pytest.fixture
async def world(storage_url: str) -> AsyncIterator[World]:
    async with a_world(storage_url) as opened:
        yield opened


async def lives(world: World, *, cancelled: int = 0) -> None:
    """A minute later the next tick is there, it runs when it is due, and so does the one after it."""
    await world.pass_time(MINUTE)
    await reap(world.storage, QUEUE)
    await plant(world.storage, QUEUE, world.schedule)
    for _ in range(2):
        tick, runs = await world.tick(), len(world.ran)
        assert tick.run is not None or tick.run_at <= world.clock.now + (1 + cancelled) * LENGTH
        await shift(world, world.storage, Complete())
        assert runs < len(world.ran)
    tick = await world.tick()
    assert (None, b"{}", True) == (tick.run, tick.data.payload, tick.run_at > world.clock.now)


async def moments_of_a_shift(how: SettleAction) -> int:
    async with a_world() as world:
        await world.disturbed(how, {})
        return world.moments


async def disturb(how: SettleAction, number: int, url: str = "memory:", *, option: str = "", each: int = 1) -> None:
    """Let each thing happen at each moment of a shift, in a world of its own; or so many at as many moments.

    The schedule goes on; and of an accident it does not even die for a moment, to be planted anew. `option`
    is how the URL names a place of its own; of all that may happen, `each` so manieth does.
    """
    things = list(product(range(1, await moments_of_a_shift(how) + 1), ACTS))
    for place, plan in enumerate(islice(combinations(things, number), 0, None, each)):
        if len({moment for moment, _ in plan}) < number:
            continue
        own = {option: f"place{place}"} if option else {}
        async with a_world(url if own or url == "memory:" else f"{url}/{place}", own=own) as world:
            try:
                await world.disturbed(how, dict(plan))
                await lives(world, cancelled=number)
                if isinstance(how, Cancelled) or not {act for _, act in plan} <= set(ACCIDENTS):
                    continue
                assert [] == world.gaps
            except AssertionError as error:
                error.add_note(f"{how}: {[(moment, act.__name__) for moment, act in plan]}")
                raise


@pytest.mark.parametrize("how", ENDS, ids=str)
async def test_whatever_happens_at_whatever_moment(how: SettleAction) -> None:
    await disturb(how, 1)


@pytest.mark.parametrize("how", ENDS[:1], ids=str)
async def test_whatever_happens_on_file(how: SettleAction, tmp_path: Path) -> None:
    await disturb(how, 1, f"file:{tmp_path}")


# On servers a part of it; strides have nothing in common with the number of acts. All of it in the long form.
ALL = pytest.param(1, id="all", marks=pytest.mark.chaos)


@pytest.mark.parametrize("each", [9, ALL])
async def test_whatever_happens_in_redis(redis_server: RedisServer, each: int) -> None:
    await disturb(Complete(), 1, redis_server.url, option="prefix", each=each)


@pytest.mark.parametrize("each", [41, ALL])
async def test_whatever_happens_in_postgres(postgres_server: PostgresServer, each: int) -> None:
    await disturb(Complete(), 1, postgres_server.url, option="schema", each=each)


async def test_whatever_happens_twice() -> None:
    await disturb(Complete(), 2, each=5)


@pytest.mark.chaos
@pytest.mark.parametrize("how", ENDS, ids=str)
async def test_whatever_happens_twice_to_every_end(how: SettleAction) -> None:
    await disturb(how, 2)


@pytest.mark.chaos
async def test_whatever_happens_three_times() -> None:
    await disturb(Complete(), 3, each=53)


# -- one tick at a time ------------------------------------------------------------------------------


async def test_many_plant_one(world: World) -> None:
    await asyncio.gather(*(plant(world.storage, QUEUE, world.schedule) for _ in range(10)))
    tick = await world.tick()

    assert (FIRST, 1) == (tick.run_at, tick.enqueues)
    assert 1 == (await world.storage.counts([QUEUE]))[QUEUE].waiting


async def test_each_tick_runs_once_whoever_is_there(world: World) -> None:
    for _ in range(3):
        for _ in range(4):
            await plant(world.storage, QUEUE, world.schedule)
        await another(world)

    assert [FIRST, FIRST + LENGTH, FIRST + 2 * LENGTH] == [due for due, _ in world.ran]


async def test_a_look_at_what_lives_changes_nothing(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    before = await world.tick()

    assert not await plant(world.storage, QUEUE, world.schedule)
    assert before == await world.tick()


# -- what was missed ---------------------------------------------------------------------------------


async def runs_after_a_night(world: World) -> list[int]:
    await plant(world.storage, QUEUE, world.schedule)
    await world.pass_time(100 * LENGTH + 90_000)
    for _ in range(2):
        await shift(world, world.storage, Complete())
    return [(due - FIRST) // LENGTH for due, _ in world.ran]


async def test_what_was_missed_runs_once() -> None:
    async with a_world() as world:
        assert [0, 100] == await runs_after_a_night(world)


async def test_what_was_missed_is_skipped() -> None:
    async with a_world(catch_up=False) as world:
        assert [100, 101] == await runs_after_a_night(world)


async def test_what_is_a_little_late_is_not_missed() -> None:
    async with a_world(catch_up=False) as world:
        await plant(world.storage, QUEUE, world.schedule)
        await world.pass_time(LENGTH + 59_000)
        await shift(world, world.storage, Complete())

        assert [FIRST] == [due for due, _ in world.ran]


async def test_a_skipped_tick_begins_afresh() -> None:
    async with a_world(catch_up=False) as world:
        await shift(world, world.storage, ENDS[2])
        assert 1 == (await world.tick()).retries
        await world.pass_time(3 * LENGTH)
        await plant(world.storage, QUEUE, world.schedule)

        assert 0 == (await world.tick()).retries


async def test_what_was_missed_while_paused_is_skipped() -> None:
    async with a_world(catch_up=False) as world:
        await plant(world.storage, QUEUE, world.schedule)
        await world.storage.configure(QUEUE, SettingsPatch(paused=True))
        await world.pass_time(3 * LENGTH)
        await shift(world, world.storage, Complete())
        assert [] == world.ran
        await world.storage.configure(QUEUE, SettingsPatch(paused=False))
        await shift(world, world.storage, Complete())

        assert 1 == len(world.ran)
        assert world.ran[0][0] > FIRST + 2 * LENGTH


# -- what is done to it ------------------------------------------------------------------------------


async def test_cancel_ends_one_tick(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    await cancel(world)
    await plant(world.storage, QUEUE, world.schedule)
    await cancel(world)
    await plant(world.storage, QUEUE, world.schedule)

    assert FIRST + 2 * LENGTH == (await world.tick()).run_at


async def test_what_was_forgotten_begins_anew(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    await forget(world)
    await plant(world.storage, QUEUE, world.schedule)

    assert FIRST == (await world.tick()).run_at


async def test_a_changed_interval_acts_at_the_next_tick(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    world.schedule = replace(world.schedule, times=Every(MINUTE))
    await plant(world.storage, QUEUE, world.schedule)
    await shift(world, world.storage, Complete())
    await shift(world, world.storage, Complete())

    assert [FIRST, FIRST + MINUTE] == [due for due, _ in world.ran]


async def test_a_run_by_hand_is_now_and_the_next_at_its_time(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK, data=JobData(payload=b"[]")))])
    await shift(world, world.storage, Complete())

    assert FIRST - LENGTH == world.ran[0][0]
    assert FIRST == (await world.tick()).run_at


async def test_a_run_by_hand_is_not_lost_behind_a_run(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK, data=JobData(payload=b"[]")))])
    await settle(world, world.storage, job, Complete())
    promoted = await world.tick()

    assert (FIRST, b"[]") == (promoted.run_at, promoted.data.payload)
    await lives(world)


async def test_a_tick_that_was_completed_without_a_next_one(world: World) -> None:
    """By hand, or by a worker that knows of no schedule: its outcome does not stand in the way."""
    await plant(world.storage, QUEUE, world.schedule)
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    assert job.run is not None
    await world.storage.settle(QUEUE, [Settlement(id=TICK, fence=job.run.fence, action=Complete())])
    [refused] = await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK), on_conflict=Reject())])

    assert "completed" == refused.status
    assert await plant(world.storage, QUEUE, world.schedule)
    await lives(world)


async def test_without_a_schedule_the_last_tick_is_the_last(world: World) -> None:
    await plant(world.storage, QUEUE, world.schedule)
    await world.clock.move_to(FIRST)
    lease = (await world.storage.grant([QUEUE], MINUTE, "test")).lease
    [job] = (await world.storage.claim(QUEUE, lease, 1)).jobs
    assert job.run is not None
    await world.storage.settle(QUEUE, [Settlement(id=TICK, fence=job.run.fence, action=Complete())])
    await world.pass_time(10 * LENGTH)

    assert await world.slot_job() is None
