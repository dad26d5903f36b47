"""A worker at the level of the protocol, and what may happen to it between any two of its calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from dibs.maintenance.reap import reap
from dibs.maintenance.schedule import plant
from dibs.model.job import Error, Job, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.schedule import TICK, Every, Schedule, with_next_tick
from dibs.storage.protocol import Storage
from dibs.testing.clock import ManualClock

QUEUE: Final = "q"
MINUTE: Final = 60_000
LEASE: Final = 15_000
#: How often the schedule runs.
LENGTH: Final = 5 * MINUTE


class KilledHere(BaseException):
    """The worker is gone; of what it still meant to do nothing happens."""


class World:
    """A storage, its time, a schedule in it, and what is to happen at which moment of a shift."""

    def __init__(self, clock: ManualClock, *, catch_up: bool = True) -> None:
        self.clock = clock
        self.schedule = Schedule(times=Every(LENGTH), data=JobData(payload=b"{}"), catch_up=catch_up)
        #: Each run that was settled: when its tick was due, and how it ended.
        self.ran: list[tuple[int, SettleAction]] = []
        self.moments = 0
        #: The moments after it was planted at which there was no tick.
        self.gaps: list[int] = []
        self.planted = False
        self._plan: Mapping[int, Callable[[World], Awaitable[None]]] = {}

    @property
    def storage(self) -> Storage:
        return self.clock.storage

    async def slot_job(self) -> Job | None:
        [slot] = await self.storage.get(QUEUE, [TICK])
        return slot.current

    async def tick(self) -> Job:
        job = await self.slot_job()
        assert job is not None, "the schedule has died"
        return job

    async def pass_time(self, ms: int) -> None:
        await self.clock.move_to(self.clock.now + ms)

    async def happen(self) -> None:
        """Let happen what is planned for this moment."""
        self.moments += 1
        if self.planted and await self.slot_job() is None:
            self.gaps.append(self.moments)
        act = self._plan.get(self.moments)
        if act is not None:
            await act(self)

    async def disturbed(self, how: SettleAction, plan: Mapping[int, Callable[[World], Awaitable[None]]]) -> None:
        """Work one shift, with this happening between its calls."""
        self.moments, self._plan = 0, plan
        try:
            await shift(self, cast("Storage", Stepwise(self)), how)
        except KilledHere:
            pass
        finally:
            self._plan = {}


class Stepwise:
    """The storage of a world, with a moment before and after each call."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._world.storage, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._world.happen()
            answer = await verb(*args, **kwargs)
            await self._world.happen()
            return answer

        return call


async def shift(world: World, storage: Storage, how: SettleAction) -> None:
    """Do what a worker does: plant, wait for the tick, claim, run, settle, and look after the schedule."""
    await plant(storage, QUEUE, world.schedule)
    world.planted = True
    job = await world.slot_job()
    if job is not None and job.run is None:
        await world.clock.move_to(job.run_at)
    await reap(storage, QUEUE)
    lease = (await storage.grant([QUEUE], LEASE, "shift")).lease
    for claimed in (await storage.claim(QUEUE, lease, 10)).jobs:
        await settle(world, storage, claimed, how)
    await plant(storage, QUEUE, world.schedule)


async def settle(world: World, storage: Storage, job: Job, how: SettleAction) -> None:
    """End a run as a worker does that asks itself what time it is."""
    assert job.run is not None
    if job.id == TICK:
        at = {"claimed_at": job.run.claimed_at, "now": world.clock.now}
        how = with_next_tick(world.schedule, QUEUE, how, **at)
    [answer] = await storage.settle(QUEUE, [Settlement(id=job.id, fence=job.run.fence, action=how)])
    if answer.status in ("done", "returned"):
        world.ran.append((job.run_at, how))


# -- what may happen ---------------------------------------------------------------------------------


async def kill(world: World) -> None:
    raise KilledHere


async def cancel(world: World) -> None:
    await world.storage.cancel(QUEUE, [TICK])


async def cancel_running(world: World) -> None:
    await world.storage.cancel(QUEUE, [TICK], running=True)


async def forget(world: World) -> None:
    await world.storage.forget(QUEUE, [TICK])


async def another(world: World) -> None:
    """Another worker does all of it meanwhile."""
    await shift(world, world.storage, Complete())


async def by_hand(world: World) -> None:
    """Somebody wants a run now."""
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK, data=JobData(payload=b"[]")))])


async def fall_asleep(world: World) -> None:
    """The worker stops for longer than its lease, and is taken for dead."""
    await world.pass_time(LEASE + 1)
    await reap(world.storage, QUEUE)


#: What befalls a worker, and what somebody does to the tick itself.
ACCIDENTS: Final = (kill, another, by_hand, fall_asleep)
ACTS: Final = (*ACCIDENTS, cancel, cancel_running, forget)
ENDS: Final[tuple[SettleAction, ...]] = (
    Complete(), Fail(error=Error(type="E")), RetryLater(delay=2000), RetryLater(delay=10 * LENGTH),
    Release(), Cancelled(),
)  # fmt: skip
