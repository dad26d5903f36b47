"""How much a fleet does, and at what cost: one figure a function, at an empty place."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.crew.handlers import IDLE, app
from dibs import Dibs
from dibs.worker import WorkReport, run

REFERENCE = "benchmarks.crew.handlers:app"
TICKS = os.sysconf("SC_CLK_TCK")
#: A fleet has started once it took less than this part of a CPU for so long, s, and as long again after
#: that: importing is no idling.
CALM, CALM_SECONDS = 0.1, 10.0


class Sample(NamedTuple):
    """How far a fleet was at a moment, and the CPU seconds it had used."""

    at: float
    completed: int
    cpu: float


class Samples:
    """Looks at a fleet five times a second, from its first claim until nothing is left to do."""

    def __init__(self) -> None:
        self._all: list[Sample] = []
        self.pids: set[int] = {os.getpid()}
        #: What each process had used when it was last seen: who is gone tells no more.
        self._used: dict[int, int] = {}

    def __call__(self, report: WorkReport) -> None:
        self.pids.update(report.processes)
        if report.total("claimed"):
            self._used.update({pid: spent for pid in self.pids if (spent := ticks(pid))})
            used = sum(self._used.values()) / TICKS
            self._all.append(Sample(time.monotonic(), report.total("completed"), used))

    def rates(self) -> tuple[float, float]:
        """Return the jobs a second and the CPU seconds a job."""
        return rates(self._all)


def rates(looks: Sequence[Sample]) -> tuple[float, float]:
    """Return the jobs a second and the CPU seconds a job.

    The first look at the end is a little behind it, so it counts only where there is no other: then the
    rate is too low. What comes later, as a poison that is tried again, does not count.
    """
    first, *others = looks
    end = looks[-1].completed
    under_way = [look for look in others if first.completed < look.completed < end]
    last = under_way[-1] if under_way else next(look for look in others if look.completed == end)
    jobs = max(1, last.completed - first.completed)
    return jobs / (last.at - first.at), (last.cpu - first.cpu) / jobs


def ticks(pid: int) -> int:
    """Return the CPU that a process has used, in clock ticks; none if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


async def fill(url: str, queue: str, jobs: int) -> None:
    """Enqueue calls without arguments."""
    payload: dict[str, object] = {"args": [], "kwargs": {}}
    async with Dibs(url) as place:
        for start in range(0, jobs, 1000):
            await place.queue(queue).enqueue_many([payload] * min(1000, jobs - start))


async def drain(queues: Sequence[str], processes: int) -> tuple[Samples, WorkReport]:
    """Do all there is to do, at the place in DIBS_URL."""
    samples = Samples()
    report = await run(
        app, queues=queues, processes=processes, until="empty", reference=REFERENCE, progress=samples
    )
    return samples, report


async def throughput(url: str, queue: str, processes: int, jobs: int) -> dict[str, object]:
    """Return jobs a second, and the CPU of supervisor and processes for each."""
    await fill(url, queue, jobs)
    samples, report = await drain([queue], processes)
    assert report.total("completed") == jobs, report
    rate, used = samples.rates()
    return {
        "figure": "throughput", "handler": queue, "processes": processes,
        "jobs_per_second": round(rate), "cpu_us_per_job": round(used * 1e6, 1),
    }  # fmt: skip


async def beside_poison(url: str, poison: str, jobs: int) -> dict[str, object]:
    """Return the share of the throughput that is left beside one job that ends its process each time."""
    await fill(url, "steady", jobs)
    alone, _ = (await drain(["steady"], 2))[0].rates()
    await fill(url, "steady", jobs)
    await fill(url, poison, 1)
    samples, report = await drain(["steady", poison], 2)
    beside, _ = samples.rates()
    return {
        "figure": "beside poison", "handler": poison, "alone": round(alone), "beside": round(beside),
        "share": round(beside / alone, 2), "stalls": report.of(poison).stalled,
    }  # fmt: skip


async def _settled(samples: Samples) -> None:
    used = 1.0
    while used > CALM or len(samples.pids) < 3:
        before = sum(map(ticks, samples.pids))
        await asyncio.sleep(CALM_SECONDS)
        used = (sum(map(ticks, samples.pids)) - before) / TICKS / CALM_SECONDS
    await asyncio.sleep(CALM_SECONDS)


async def idling(seconds: float) -> dict[str, object]:
    """Return the CPU of a fleet with two processes and fifty queues in which nothing happens."""
    queues = [f"idle{number}" for number in range(IDLE)]
    samples = Samples()
    task = asyncio.create_task(run(app, queues=queues, processes=2, reference=REFERENCE, progress=samples))
    await _settled(samples)
    before = sum(map(ticks, samples.pids))
    await asyncio.sleep(seconds)
    used = (sum(map(ticks, samples.pids)) - before) / TICKS
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    return {
        "figure": "idle", "queues": IDLE, "processes": 2, "cpu_percent": round(100 * used / seconds, 2),
    }  # fmt: skip
