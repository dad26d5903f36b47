"""Worker processes are killed at random, and every job ends exactly once."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter

import pytest

from dibs.app import Dibs
from dibs.worker import WorkReport, run
from tests.worker.jobs import ids, put, request

pytestmark = pytest.mark.chaos

JOBS = 2000
KILLS = 8


class Killer:
    """A task that kills a random worker process every 0.1 to 0.4 seconds.

    All jobs of a test end in about a second, so longer pauses left some seeds without a kill.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.report = WorkReport()
        self.kills = 0

    def on_progress(self, report: WorkReport) -> None:
        self.report = report

    async def kill(self) -> None:
        while self.kills < KILLS:
            await asyncio.sleep(self.random.uniform(0.1, 0.4))
            # Kill after the first claim only: `run` fails if no process ever becomes ready.
            if not self.report.processes or not self.report.total("claimed"):
                continue
            try:
                os.kill(self.random.choice(self.report.processes), signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.kills += 1


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@pytest.mark.parametrize("seed", range(5))
async def test_every_job_ends_once(app: Dibs, seed: int) -> None:
    killer = Killer(seed)
    for queue in ("naps", "naps_async"):
        for part in range(0, JOBS, 1000):
            await put(app, queue, *[request(f"{part}-{id}", 0.01) for id in ids(1000)])
    killing = asyncio.create_task(killer.kill())
    async with asyncio.timeout(120):
        report = await run(
            app, queues=["naps", "naps_async"], processes=2, until="empty", progress=killer.on_progress
        )
    killing.cancel()

    assert killer.kills > 0
    for queue in ("naps", "naps_async"):
        ends = await completions(app, queue)
        numbers = report.queue(queue)
        assert (JOBS, {1}) == (len(ends), set(ends.values()))
        assert 0 == numbers.running
        # If a process completed a run, but died before its report, the run counts as lost.
        assert JOBS == numbers.completed + numbers.lost


async def completions(app: Dibs, queue: str) -> Counter[str]:
    """Return how many completed events each id has."""
    ends: Counter[str] = Counter()
    after = None
    while (page := await app.storage.events(queue, after=after, limit=1000)).events:
        ends.update(event.id for _, event in page.events if event.kind == "completed")
        after = page.offset
    return ends
