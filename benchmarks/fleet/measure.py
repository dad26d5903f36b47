"""The measurements of throughput and CPU. Each function returns one row, measured on an empty storage."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.fleet.handlers import IDLE_QUEUES, app
from dibs import Dibs
from dibs.worker import WorkReport, run

APP = "benchmarks.fleet.handlers:app"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
#: The idle measurement starts after 10 s with less than a tenth of a CPU, and 10 s more. Before that, the
#: processes still import.
CALM_CPU, CALM_SECONDS = 0.1, 10.0


class Sample(NamedTuple):
    """The progress of the worker processes at a moment, and the CPU seconds they have used."""

    at: float
    completed: int
    cpu: float


class Samples:
    """A progress callback that collects a sample five times a second, from the first claim to the end."""

    def __init__(self) -> None:
        self._samples: list[Sample] = []
        self.pids: set[int] = {os.getpid()}
        #: Process id -> clock ticks at its last sample. The ticks of an ended process stay.
        self._ticks: dict[int, int] = {}

    def __call__(self, report: WorkReport) -> None:
        self.pids.update(report.processes)
        if report.total("claimed"):
            self._ticks.update({pid: ticks for pid in self.pids if (ticks := cpu_ticks(pid))})
            used = sum(self._ticks.values()) / TICKS_PER_SECOND
            self._samples.append(Sample(time.monotonic(), report.total("completed"), used))

    def rates(self) -> tuple[float, float]:
        """Return the jobs a second and the CPU seconds a job."""
        return rates(self._samples)


def rates(samples: Sequence[Sample]) -> tuple[float, float]:
    """Return the jobs a second and the CPU seconds a job.

    The last sample before the final count is used: the first sample with the final count was taken a little
    after the end, so a rate up to that sample is too low. It is used if there is no sample between the first
    and the final count. Samples after it are ignored, for instance those taken while a poison is retried.
    """
    first, *others = samples
    final = samples[-1].completed
    before_final = [sample for sample in others if first.completed < sample.completed < final]
    if not others:
        raise ValueError("all jobs ended before the second sample, 0.2 s after the first: measure more jobs")
    last = before_final[-1] if before_final else next(one for one in others if one.completed == final)
    jobs = max(1, last.completed - first.completed)
    return jobs / (last.at - first.at), (last.cpu - first.cpu) / jobs


def cpu_ticks(pid: int) -> int:
    """Return the CPU time of a process in clock ticks, or 0 if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11]) + int(fields[12])


async def fill(url: str, queue: str, jobs: int) -> None:
    """Enqueue calls without arguments."""
    payload: dict[str, object] = {"args": [], "kwargs": {}}
    async with Dibs(url) as client:
        for start in range(0, jobs, 1000):
            await client.queue(queue).enqueue_many([payload] * min(1000, jobs - start))


async def drain(queues: Sequence[str], processes: int) -> tuple[Samples, WorkReport]:
    """Run all jobs of the storage in DIBS_URL."""
    samples = Samples()
    report = await run(
        app, queues=queues, processes=processes, until="empty", reference=APP, progress=samples
    )
    return samples, report


async def throughput(url: str, queue: str, processes: int, jobs: int) -> dict[str, object]:
    """Return jobs a second, and for each job the CPU time of the supervisor and its processes."""
    await fill(url, queue, jobs)
    samples, report = await drain([queue], processes)
    assert report.total("completed") == jobs, report
    rate, used = samples.rates()
    return {
        "figure": "throughput", "handler": queue, "processes": processes,
        "jobs_per_second": round(rate), "cpu_us_per_job": round(used * 1e6, 1),
    }  # fmt: skip


async def throughput_with_poison(url: str, poison: str, jobs: int) -> dict[str, object]:
    """Return the throughput with and without a job that kills its process in each run."""
    await fill(url, "steady", jobs)
    without, _ = (await drain(["steady"], 2))[0].rates()
    await fill(url, "steady", jobs)
    await fill(url, poison, 1)
    samples, report = await drain(["steady", poison], 2)
    with_poison, _ = samples.rates()
    return {
        "figure": "throughput with poison", "handler": poison, "without": round(without),
        "with": round(with_poison), "share": round(with_poison / without, 2),
        "stalls": report.queue(poison).stalled,
    }  # fmt: skip


async def _wait_until_calm(samples: Samples) -> None:
    used = 1.0
    while used > CALM_CPU or len(samples.pids) < 3:
        before = sum(map(cpu_ticks, samples.pids))
        await asyncio.sleep(CALM_SECONDS)
        used = (sum(map(cpu_ticks, samples.pids)) - before) / TICKS_PER_SECOND / CALM_SECONDS
    await asyncio.sleep(CALM_SECONDS)


async def idle_cpu(seconds: float) -> dict[str, object]:
    """Return the CPU of a supervisor with two processes and fifty empty queues, in percent of one CPU."""
    queues = [f"idle{number}" for number in range(IDLE_QUEUES)]
    samples = Samples()
    task = asyncio.create_task(run(app, queues=queues, processes=2, reference=APP, progress=samples))
    await _wait_until_calm(samples)
    before = sum(map(cpu_ticks, samples.pids))
    await asyncio.sleep(seconds)
    used = (sum(map(cpu_ticks, samples.pids)) - before) / TICKS_PER_SECOND
    os.kill(os.getpid(), signal.SIGTERM)
    await task
    return {
        "figure": "idle", "queues": IDLE_QUEUES, "processes": 2,
        "cpu_percent": round(100 * used / seconds, 2),
    }  # fmt: skip
