"""A day of work with known troubles, on a real storage: `python -m benchmarks.history_day URL [--runs N]`.

Every job goes through enqueue, claim and settle of a storage opened with clock="manual", so a day passes as
fast as the storage works. Arrivals follow the hours and come in bursts, run times have a heavy tail, one id
never succeeds, and for half an hour there is no worker.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import heappop, heappush
from random import Random
from typing import Final

from msgspec import Struct

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
#: How often a worker looks, ms, a little more or less: what comes in between is done together.
LOOK: Final = 500
LEASE: Final = 60_000
POISON: Final = "order-666"
#: Of how often the poison is sent again, of an outage after so many of the day's hours and its length: ms.
POISON_EVERY: Final = HOUR // 6
OUTAGE_AFTER: Final = 0.55
OUTAGE: Final = HOUR // 2


class Kind(Struct, frozen=True, kw_only=True):
    """What one queue is like."""

    queue: str
    #: Its part of all jobs.
    share: float
    #: Median run time in ms, and how heavy the tail is (sigma of a lognormal).
    median: float
    tail: float
    #: The part of its jobs that goes to one of a few ids, each known already more often than not.
    known: float
    failing: float
    errors: tuple[str, ...]
    has_poison: bool = False

    @property
    def mean(self) -> float:
        """The mean run time, ms."""
        return self.median * math.exp(self.tail**2 / 2)


KINDS: Final = (
    Kind(queue="mail", share=0.7, median=120, tail=0.8, known=0.3, failing=0.004,
         errors=("ConnectionError", "SMTPServerBusy")),
    Kind(queue="images", share=0.28, median=700, tail=1.0, known=0.1, failing=0.01,
         errors=("OSError", "UnidentifiedImageError"), has_poison=True),
    Kind(queue="reports", share=0.02, median=9_000, tail=1.3, known=0.0, failing=0.02,
         errors=("QueryTimeout",)),
)  # fmt: skip


class Planted(Struct, frozen=True, kw_only=True):
    """What a reader of the history should find."""

    begin: int
    end: int
    outage: tuple[int, int]
    poison: tuple[str, str]
    runs: int
    jobs: int


@dataclass
class Line:
    """One queue, its workers and what they run."""

    kind: Kind
    arrivals: Iterator[int]
    slots: int
    next_arrival: int | None = None
    next_poison: int | None = None
    next_due: int | None = None
    lease: str = ""
    renew_at: int = 0
    #: When each run is over: (time, fence, id, how it ends).
    running: list[tuple[int, int, str, SettleAction]] = field(default_factory=list)

    def next_at(self, *, working: bool) -> int:
        """Return when there is something to do."""
        times = [self.next_arrival, self.next_poison]
        if working:
            times += [self.next_due, self.running[0][0] if self.running else None]
        return min((at for at in times if at is not None), default=2**62)


class Day:
    """Plays the day. `runs` is about how many jobs there are; each is run at least once."""

    def __init__(
        self, storage: Storage, *, runs: int, hours: float = 24, start: datetime | None = None, seed: int = 7
    ) -> None:
        start = start or datetime(2026, 11, 20, tzinfo=UTC)
        self.storage = storage
        self.begin = int(start.timestamp() * 1000)
        self.end = self.begin + round(hours * HOUR)
        out = self.begin + round((self.end - self.begin) * OUTAGE_AFTER / 60_000) * 60_000
        self.outage = (out, out + OUTAGE)
        self.chance = Random(seed)
        self.lines = [self._line(kind, runs, hours) for kind in KINDS]
        self.runs = self.jobs = 0

    def _line(self, kind: Kind, runs: int, hours: float) -> Line:
        per_ms = runs * kind.share / (hours * HOUR)
        # Enough for the busiest hour, not for every burst.
        slots = max(2, math.ceil(per_ms * 1.6 * (kind.mean + LOOK) / 0.75))
        line = Line(kind, self._arrivals(per_ms), slots)
        line.next_arrival = next(line.arrivals, None)
        line.next_poison = self.begin + POISON_EVERY if kind.has_poison else None
        return line

    def _arrivals(self, per_ms: float) -> Iterator[int]:
        """Yield times: a wave over the day, and now and then three minutes of five times as many."""
        chance = Random(self.chance.random())
        at, burst_until, most = float(self.begin), 0.0, per_ms * 7
        while (at := at + chance.expovariate(most)) < self.end:
            through = (at - self.begin) / (self.end - self.begin)
            wave = 1 + 0.6 * math.sin(2 * math.pi * (through - 0.25))
            if at > burst_until and chance.random() < 0.02 * per_ms / most / (per_ms * HOUR / 60):
                burst_until = at + 180_000
            if chance.random() < wave * (5 if at < burst_until else 1) * per_ms / most:
                yield int(at)

    async def play(self, level: LogLevel = "runs") -> Planted:
        """Let the day pass, and the rest of the work after it."""
        keep = OutcomeRetention(completed=NOT_KEPT, cancelled=NOT_KEPT, failed=NOT_KEPT)
        patch = SettingsPatch(log_age=10**12, log_bytes=2**50, log_level=level, retention=keep)
        for line in self.lines:
            await self.storage.configure(line.kind.queue, patch, now=self.begin)
        now = self.begin
        while True:
            working = not self.outage[0] <= now < self.outage[1]
            at = min(line.next_at(working=working) for line in self.lines)
            if at == 2**62:
                break
            at = max(now + LOOK // 2, at) + self.chance.randrange(LOOK)
            if now < self.outage[1] < at:
                at = self.outage[1]
            if now < self.outage[0] <= at:
                self._all_die()
            now = at
            for line in self.lines:
                await self._look(line, now)
        poison = next(line.kind.queue for line in self.lines if line.kind.has_poison)
        return Planted(
            begin=self.begin,
            end=now,
            outage=self.outage,
            poison=(poison, POISON),
            runs=self.runs,
            jobs=self.jobs,
        )

    def _all_die(self) -> None:
        for line in self.lines:
            line.running, line.lease, line.next_due = [], "", None

    async def _look(self, line: Line, now: int) -> None:
        if line.next_at(working=True) > now and line.lease:
            return
        await self._enqueue(line, now)
        if not self.outage[0] <= now < self.outage[1]:
            await self._work(line, now)

    async def _enqueue(self, line: Line, now: int) -> None:
        ids = []
        while line.next_arrival is not None and line.next_arrival <= now:
            ids.append(self._id(line))
            line.next_arrival = next(line.arrivals, None)
        if line.next_poison is not None and line.next_poison <= now:
            ids.append(POISON)
            later = line.next_poison + POISON_EVERY
            line.next_poison = later if later < self.end else None
        for first in range(0, len(ids), 1000):
            wanted = [EnqueueRequest(job=NewJob(id=id)) for id in ids[first : first + 1000]]
            await self.storage.enqueue(line.kind.queue, wanted, now=now)
        self.jobs += len(ids)

    def _id(self, line: Line) -> str:
        if self.chance.random() < line.kind.known:
            return f"customer-{int(self.chance.paretovariate(0.6)) % 5000}"
        return f"{line.kind.queue}-{self.jobs}-{self.chance.getrandbits(40):010x}"

    async def _work(self, line: Line, now: int) -> None:
        queue = line.kind.queue
        if not line.lease:
            await self.storage.reap(queue, 100_000, now=now)
            line.lease = await self._grant(queue, now)
            line.renew_at = now + LEASE // 3
        elif now >= line.renew_at:
            await self._renew(line, now)
        over = []
        while line.running and line.running[0][0] <= now:
            _, fence, id, how = heappop(line.running)
            over.append(Settlement(id=id, fence=fence, action=how))
        free = line.slots - len(line.running)
        if not free:
            # Then no run is over, and there is nothing to settle.
            return
        claim = (await self.storage.settle_and_claim(queue, over, line.lease, free, now=now)).claim
        for job in claim.jobs:
            self._begin(line, job, now)
        self.runs += len(claim.jobs)
        line.next_due = claim.next_due if len(line.running) < line.slots else None

    async def _renew(self, line: Line, now: int) -> None:
        renewed = await self.storage.renew([line.kind.queue], line.lease, LEASE, now=now)
        if not renewed[line.kind.queue].alive:
            # There was nothing to do for longer than a lease lasts; runs are shorter, so none was lost.
            line.lease = await self._grant(line.kind.queue, now)
        line.renew_at = now + LEASE // 3

    async def _grant(self, queue: str, now: int) -> str:
        return (await self.storage.grant([queue], LEASE, f"{queue}-worker", now=now)).lease

    def _begin(self, line: Line, job: Job, now: int) -> None:
        assert job.run is not None
        kind, chance = line.kind, self.chance
        took = min(kind.median * math.exp(chance.gauss(0, kind.tail)), LEASE / 3)
        how: SettleAction = Complete()
        if job.id == POISON:
            error = Error(type="CorruptImageError", message="cannot decode frame 0")
            how = RetryLater(delay=5_000, error=error) if job.retries < 2 else Fail(error=error)
        elif chance.random() < kind.failing:
            error = Error(type=chance.choice(kind.errors), message="the other side gave up")
            how = RetryLater(delay=2_000, error=error) if job.retries < 3 else Fail(error=error)
        elif chance.random() < kind.failing / 4:
            how = RetryLater(
                delay=2_000, cause="timeout", error=Error(type="TimeoutError", message="too long")
            )
        heappush(line.running, (now + max(1, round(took)), job.run.fence, job.id, how))


async def play(url: str, *, runs: int, hours: float = 24, level: LogLevel = "runs", seed: int = 7) -> Planted:
    """Play a day at an empty place."""
    async with open_storage(url, clock="manual") as storage:
        return await Day(storage, runs=runs, hours=hours, seed=seed).play(level)


def main() -> None:
    """Play a day and print what was planted."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.history_day", description=__doc__)
    parser.add_argument("url", help="an empty place, as in file:/data/day")
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--level", choices=("runs", "all"), default="runs")
    parser.add_argument("--seed", type=int, default=7)
    words = parser.parse_args()
    begun = time.monotonic()
    planted = asyncio.run(
        play(words.url, runs=words.runs, hours=words.hours, level=words.level, seed=words.seed)
    )
    outage = [datetime.fromtimestamp(at / 1000, UTC).isoformat() for at in planted.outage]
    print(
        json.dumps(
            {
                "jobs": planted.jobs, "runs": planted.runs, "outage": outage, "poison": planted.poison,
                "seconds": round(time.monotonic() - begun, 1),
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
