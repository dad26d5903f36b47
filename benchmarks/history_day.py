"""Simulate a day of work with known problems: `python -m benchmarks.history_day URL [--runs N]`.

Each job is enqueued, claimed and settled on a storage that is opened with clock="manual", so the simulation
is as fast as the storage. The rate of arrivals follows the hour and has bursts, run times have a heavy tail,
one job id never succeeds, and for half an hour all workers are down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from heapq import heappop, heappush
from random import Random
from typing import Final

from attrs import Factory, define, frozen

from dibs.model.job import NOT_KEPT, Error, Job, NewJob, OutcomeRetention
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    LogLevel,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

HOUR: Final = 3_600_000
#: Average ms between two steps of the simulation. All events between two steps are processed together.
STEP: Final = 500
LEASE: Final = 60_000
NEVER: Final = 2**62
#: A job id that never succeeds.
POISON: Final = "order-666"
#: Milliseconds between two enqueues of the poison job.
POISON_EVERY: Final = HOUR // 6
#: Start of the outage, as a part of the day.
OUTAGE_START: Final = 0.55
#: Length of the outage in ms.
OUTAGE: Final = HOUR // 2


@frozen(kw_only=True)
class QueueProfile:
    """The load and the failures of one queue."""

    queue: str
    #: Part of all jobs.
    share: float
    #: Median run time in ms.
    median: float
    #: Sigma of the lognormal run times.
    tail: float
    #: Part of the jobs that use one of 5000 customer ids; highest of these ids were used before.
    reused_ids: float
    #: Part of the runs that fail.
    failing: float
    #: Error types of failed runs.
    errors: tuple[str, ...]
    has_poison: bool = False

    @property
    def mean(self) -> float:
        """The mean run time in ms."""
        return self.median * math.exp(self.tail**2 / 2)


PROFILES: Final = (
    QueueProfile(queue="mail", share=0.7, median=120, tail=0.8, reused_ids=0.3, failing=0.004,
         errors=("ConnectionError", "SMTPServerBusy")),
    QueueProfile(queue="images", share=0.28, median=700, tail=1.0, reused_ids=0.1, failing=0.01,
         errors=("OSError", "UnidentifiedImageError"), has_poison=True),
    QueueProfile(queue="reports", share=0.02, median=9_000, tail=1.3, reused_ids=0.0, failing=0.02,
         errors=("QueryTimeout",)),
)  # fmt: skip


@frozen(kw_only=True)
class ExpectedFindings:
    """The facts that an analysis of the history should find. Times are in ms since the epoch."""

    begin: int
    end: int
    outage: tuple[int, int]
    #: Queue and id of the poison job.
    poison: tuple[str, str]
    runs: int
    jobs: int


@define
class SimulatedQueue:
    """One queue, its workers and their runs."""

    profile: QueueProfile
    arrivals: Iterator[int]
    #: Runs at the same time.
    slots: int
    next_arrival: int | None = None
    next_poison: int | None = None
    next_due: int | None = None
    lease: str = ""
    renew_at: int = 0
    #: A heap of the active runs: (end in ms, fence, id, settle action).
    running: list[tuple[int, int, str, SettleAction]] = Factory(list)

    def next_at(self, *, working: bool) -> int:
        """Return the time of the next event in ms, or `NEVER`. Without workers only enqueues are events."""
        times = [self.next_arrival, self.next_poison]
        if working:
            times += [self.next_due, self.running[0][0] if self.running else None]
        return min((at for at in times if at is not None), default=NEVER)


class DaySimulation:
    """A simulated day with about `runs` jobs. Each job runs at least once."""

    def __init__(
        self, storage: Storage, *, runs: int, hours: float = 24, start: datetime | None = None, seed: int = 7
    ) -> None:
        start = start or datetime(2026, 11, 20, tzinfo=UTC)
        self.storage = storage
        self.begin = int(start.timestamp() * 1000)
        self.end = self.begin + round(hours * HOUR)
        outage = self.begin + round((self.end - self.begin) * OUTAGE_START / 60_000) * 60_000
        self.outage = (outage, outage + OUTAGE)
        self.random = Random(seed)
        self.queues = [self._queue(profile, runs, hours) for profile in PROFILES]
        self.runs = self.jobs = 0

    def _queue(self, profile: QueueProfile, runs: int, hours: float) -> SimulatedQueue:
        per_ms = runs * profile.share / (hours * HOUR)
        # Enough slots for the busiest hour, but too few for the bursts.
        slots = max(2, math.ceil(per_ms * 1.6 * (profile.mean + STEP) / 0.75))
        queue = SimulatedQueue(profile, self._arrivals(per_ms), slots)
        queue.next_arrival = next(queue.arrivals, None)
        queue.next_poison = self.begin + POISON_EVERY if profile.has_poison else None
        return queue

    def _arrivals(self, per_ms: float) -> Iterator[int]:
        """Yield the times of arrivals: a wave over the day, with bursts of three minutes at five times the
        rate.
        """
        rng = Random(self.random.random())
        at, burst_until, highest = float(self.begin), 0.0, per_ms * 7
        while (at := at + rng.expovariate(highest)) < self.end:
            progress = (at - self.begin) / (self.end - self.begin)
            wave = 1 + 0.6 * math.sin(2 * math.pi * (progress - 0.25))
            if at > burst_until and rng.random() < 0.02 * per_ms / highest / (per_ms * HOUR / 60):
                burst_until = at + 180_000
            if rng.random() < wave * (5 if at < burst_until else 1) * per_ms / highest:
                yield int(at)

    async def run(self, level: LogLevel = "runs") -> ExpectedFindings:
        """Simulate the day, and then the rest of the work. Return the expected findings."""
        keep = OutcomeRetention(completed=NOT_KEPT, cancelled=NOT_KEPT, failed=NOT_KEPT)
        patch = SettingsPatch(log_age=10**12, log_bytes=2**50, log_level=level, retention=keep)
        for queue in self.queues:
            await self.storage.configure(queue.profile.queue, patch, now=self.begin)
        now = self.begin
        while True:
            working = not self.outage[0] <= now < self.outage[1]
            at = min(queue.next_at(working=working) for queue in self.queues)
            if at == NEVER:
                break
            at = max(now + STEP // 2, at) + self.random.randrange(STEP)
            if now < self.outage[1] < at:
                at = self.outage[1]
            if now < self.outage[0] <= at:
                self._stop_workers()
            now = at
            for queue in self.queues:
                await self._step(queue, now)
        poison = next(queue.profile.queue for queue in self.queues if queue.profile.has_poison)
        return ExpectedFindings(
            begin=self.begin,
            end=now,
            outage=self.outage,
            poison=(poison, POISON),
            runs=self.runs,
            jobs=self.jobs,
        )

    def _stop_workers(self) -> None:
        for queue in self.queues:
            queue.running, queue.lease, queue.next_due = [], "", None

    async def _step(self, queue: SimulatedQueue, now: int) -> None:
        if queue.next_at(working=True) > now and queue.lease:
            return
        await self._enqueue(queue, now)
        if not self.outage[0] <= now < self.outage[1]:
            await self._work(queue, now)

    async def _enqueue(self, queue: SimulatedQueue, now: int) -> None:
        ids = []
        while queue.next_arrival is not None and queue.next_arrival <= now:
            ids.append(self._new_id(queue))
            queue.next_arrival = next(queue.arrivals, None)
        if queue.next_poison is not None and queue.next_poison <= now:
            ids.append(POISON)
            later = queue.next_poison + POISON_EVERY
            queue.next_poison = later if later < self.end else None
        for first in range(0, len(ids), 1000):
            wanted = [EnqueueRequest(job=NewJob(id=id)) for id in ids[first : first + 1000]]
            await self.storage.enqueue(queue.profile.queue, wanted, now=now)
        self.jobs += len(ids)

    def _new_id(self, queue: SimulatedQueue) -> str:
        if self.random.random() < queue.profile.reused_ids:
            return f"customer-{int(self.random.paretovariate(0.6)) % 5000}"
        return f"{queue.profile.queue}-{self.jobs}-{self.random.getrandbits(40):010x}"

    async def _work(self, queue: SimulatedQueue, now: int) -> None:
        name = queue.profile.queue
        if not queue.lease:
            await self.storage.reap(name, 100_000, now=now)
            queue.lease = await self._grant(name, now)
            queue.renew_at = now + LEASE // 3
        elif now >= queue.renew_at:
            await self._renew(queue, now)
        ended = []
        while queue.running and queue.running[0][0] <= now:
            _, fence, id, action = heappop(queue.running)
            ended.append(Settlement(id=id, fence=fence, action=action))
        free = queue.slots - len(queue.running)
        if not free:
            # All slots are still used, so no run has ended and `ended` is empty.
            return
        claim = (await self.storage.settle_and_claim(name, ended, queue.lease, free, now=now)).claim
        for job in claim.jobs:
            self._start_run(queue, job, now)
        self.runs += len(claim.jobs)
        queue.next_due = claim.next_due if len(queue.running) < queue.slots else None

    async def _renew(self, queue: SimulatedQueue, now: int) -> None:
        renewed = await self.storage.renew([queue.profile.queue], queue.lease, LEASE, now=now)
        if not renewed[queue.profile.queue].alive:
            # The queue was idle for longer than a lease. Runs are shorter than a lease, so all have ended.
            queue.lease = await self._grant(queue.profile.queue, now)
        queue.renew_at = now + LEASE // 3

    async def _grant(self, name: str, now: int) -> str:
        return (await self.storage.grant([name], LEASE, f"{name}-worker", now=now)).lease

    def _start_run(self, queue: SimulatedQueue, job: Job, now: int) -> None:
        assert job.run is not None
        profile, rng = queue.profile, self.random
        duration = min(profile.median * math.exp(rng.gauss(0, profile.tail)), LEASE / 3)
        action: SettleAction = Complete()
        if job.id == POISON:
            error = Error(type="CorruptImageError", message="cannot decode frame 0")
            action = RetryLater(delay=5_000, error=error) if job.retries < 2 else Fail(error=error)
        elif rng.random() < profile.failing:
            error = Error(type=rng.choice(profile.errors), message="the other side gave up")
            action = RetryLater(delay=2_000, error=error) if job.retries < 3 else Fail(error=error)
        elif rng.random() < profile.failing / 4:
            action = RetryLater(
                delay=2_000, cause="timeout", error=Error(type="TimeoutError", message="too long")
            )
        heappush(queue.running, (now + max(1, round(duration)), job.run.fence, job.id, action))


async def simulate_day(
    url: str, *, runs: int, hours: float = 24, level: LogLevel = "runs", seed: int = 7
) -> ExpectedFindings:
    """Simulate a day on an empty storage."""
    async with open_storage(url, clock="manual") as storage:
        return await DaySimulation(storage, runs=runs, hours=hours, seed=seed).run(level)


def main() -> None:
    """Simulate a day and print the expected findings as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_day", description=__doc__)
    parser.add_argument("url", help="an empty storage, such as file:/data/day")
    parser.add_argument("--runs", type=int, default=1_000_000, help="jobs, about (default: 1,000,000)")
    parser.add_argument("--hours", type=float, default=24, help="length of the day (default: 24)")
    parser.add_argument("--level", choices=("runs", "all"), default="runs", help="log level of the queues")
    parser.add_argument("--seed", type=int, default=7, help="of the random numbers")
    options = parser.parse_args()
    started = time.monotonic()
    findings = asyncio.run(
        simulate_day(
            options.url, runs=options.runs, hours=options.hours, level=options.level, seed=options.seed
        )
    )
    outage = [datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in findings.outage]
    print(
        json.dumps(
            {
                "jobs": findings.jobs, "runs": findings.runs, "outage": outage, "poison": findings.poison,
                "seconds": round(time.monotonic() - started, 1),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
