"""A simulated worker with a periodic task, and disturbances between any two of its calls to the storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from dibs.maintenance.reap import reap
from dibs.maintenance.ticks import apply_declared_schedule, enqueue_missing_tick
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
from dibs.model.schedule import TICK_ID, Every, Schedule, read_schedule, refuse_tick, with_next_tick
from dibs.storage.protocol import Storage
from dibs.testing.clock import ManualClock

QUEUE: Final = "q"
MINUTE: Final = 60_000
#: Milliseconds that a lease lasts.
LEASE: Final = 15_000
#: Milliseconds between two ticks.
INTERVAL: Final = 5 * MINUTE


class WorkerKilled(BaseException):
    """The simulated worker was killed: it makes no further call."""


class World:
    """A storage with a manual clock, a schedule in it, and the disturbances planned for each step."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.schedule = Schedule(times=Every(INTERVAL), data=JobData(payload=b"{}"))
        #: Each settled run: the run_at of its tick, and its settlement.
        self.ran: list[tuple[int, SettleAction]] = []
        #: The number of the current step; a step precedes and follows each call to the storage.
        self.steps = 0
        #: The steps at which the schedule had no live tick, after the first one was enqueued.
        self.gaps: list[int] = []
        #: True since the first tick was enqueued.
        self.started = False
        self._plan: Mapping[int, Callable[[World], Awaitable[None]]] = {}

    @property
    def storage(self) -> Storage:
        return self.clock.storage

    async def current_tick(self) -> Job | None:
        [slot] = await self.storage.get(QUEUE, [TICK_ID])
        return slot.current

    async def tick(self) -> Job:
        job = await self.current_tick()
        assert job is not None, "the schedule has died"
        return job

    async def pass_time(self, ms: int) -> None:
        await self.clock.move_to(self.clock.now_ms + ms)

    async def next_step(self) -> None:
        """Count the step, note a missing tick, and run the disturbance planned for this step."""
        self.steps += 1
        if self.started and await self.current_tick() is None:
            self.gaps.append(self.steps)
        disturbance = self._plan.get(self.steps)
        if disturbance is not None:
            await disturbance(self)

    async def work_disturbed(
        self, action: SettleAction, plan: Mapping[int, Callable[[World], Awaitable[None]]]
    ) -> None:
        """Run `work_once` with the disturbances of `plan`, which maps steps to functions."""
        self.steps, self._plan = 0, plan
        try:
            await work_once(self, cast("Storage", SteppedStorage(self)), action)
        except WorkerKilled:
            pass
        finally:
            self._plan = {}


class SteppedStorage:
    """The storage of a world, with a step before and after each call."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._world.storage, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._world.next_step()
            result = await verb(*args, **kwargs)
            await self._world.next_step()
            return result

        return call


async def work_once(world: World, storage: Storage, action: SettleAction) -> None:
    """Do the calls of a worker: start, wait until the tick is due, reap, claim, settle, check again."""
    await apply_declared_schedule(storage, QUEUE, world.schedule, world.clock.now_ms)
    world.started = True
    job = await world.current_tick()
    if job is not None and job.run is None:
        await world.clock.move_to(job.run_at)
    await reap(storage, QUEUE)
    lease = (await storage.grant([QUEUE], LEASE, "world")).lease
    for claimed in (await storage.claim(QUEUE, lease, 10)).jobs:
        await settle(world, storage, claimed, refuse_tick(claimed) or action)
    await enqueue_missing_tick(storage, QUEUE, world.schedule)


async def settle(world: World, storage: Storage, job: Job, action: SettleAction) -> None:
    """Settle a run as a worker does, with the next tick computed from the time now."""
    assert job.run is not None
    if job.id == TICK_ID:
        at = {"claimed_at": job.run.claimed_at, "now": world.clock.now_ms}
        schedule = read_schedule(job.data) or world.schedule
        action = with_next_tick(schedule, QUEUE, TICK_ID, action, **at)
    [result] = await storage.settle(QUEUE, [Settlement(id=job.id, fence=job.run.fence, action=action)])
    if result.status in ("done", "returned") and refuse_tick(job) is None:
        world.ran.append((job.run_at, action))


# -- disturbances --------------------------------------------------------------------------------------


async def kill(world: World) -> None:
    raise WorkerKilled


async def cancel(world: World) -> None:
    await world.storage.cancel(QUEUE, [TICK_ID])


async def cancel_running(world: World) -> None:
    await world.storage.cancel(QUEUE, [TICK_ID], running=True)


async def forget(world: World) -> None:
    await world.storage.forget(QUEUE, [TICK_ID])


async def another_worker(world: World) -> None:
    """Another worker makes all its calls now."""
    await work_once(world, world.storage, Complete())


async def enqueue_tick_now(world: World) -> None:
    """A user enqueues the id of the tick, to run it now."""
    await world.storage.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=TICK_ID, data=JobData(payload=b"[]")))])


async def pause_beyond_lease(world: World) -> None:
    """The worker pauses for longer than its lease, and another worker reaps its jobs."""
    await world.pass_time(LEASE + 1)
    await reap(world.storage, QUEUE)


#: Disturbances after which the schedule has a live tick at every step.
ACCIDENTS: Final = (kill, another_worker, enqueue_tick_now, pause_beyond_lease)
DISTURBANCES: Final = (*ACCIDENTS, cancel, cancel_running, forget)
ACTIONS: Final[tuple[SettleAction, ...]] = (
    Complete(), Fail(error=Error(type="E")), RetryLater(delay=2000), RetryLater(delay=10 * INTERVAL),
    Release(), Cancelled(),
)  # fmt: skip
