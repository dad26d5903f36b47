"""Worker processes are killed at random moments: each flow ends once, with the results of all its nodes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attrs import define, field

from dibs import Dibs
from dibs.model.wakeup import FLOWS
from dibs.worker import WorkReport, run
from dibs.worker.supervisor import workers
from tests.flow import kill_app
from tests.storage_urls import new_url

SHORT = (6, 4)
LONG = (50, 25)
#: Seconds for all flows; long enough for a busy machine.
TIMEOUT = 240


@pytest.fixture
async def app(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Dibs]:
    monkeypatch.setenv("DIBS_URL", new_url(request.param, request))
    monkeypatch.setattr(workers, "RESTART_PAUSE", (0.0, 0.0))
    async with kill_app.app as opened:
        yield opened


@define
class Killer:
    """Kills worker processes at random moments, after the first claim of one of them."""

    most: int
    random: random.Random
    kills: int = 0
    report: WorkReport = field(factory=WorkReport)
    #: Set after the first kill. On a fast machine, a few flows end before it.
    has_killed: asyncio.Event = field(factory=asyncio.Event)

    def on_progress(self, report: WorkReport) -> None:
        self.report = report

    async def kill(self) -> None:
        completed = 0
        while self.kills < self.most:
            await asyncio.sleep(self.random.uniform(0.02, 0.25))
            # Most starts of flows would be killed, and few nodes, if each kill came by time alone.
            if self.kills % 2 and self.report.total("completed") == completed:
                continue
            # Kill after the first claim only: the worker gives up if no process ever becomes ready.
            if self.report.processes and self.report.total("claimed"):
                self.kills += self._kill(self.random.choice(self.report.processes))
                completed = self.report.total("completed")

    def _kill(self, process: int) -> bool:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.has_killed.set()
        return True


async def count_ends(app: Dibs, queue: str) -> Counter[str]:
    """Return how many ends each id has in the log of a queue."""
    ends: Counter[str] = Counter()
    after = None
    while (page := await app.storage.events(queue, after=after, limit=1000)).events:
        ends.update(one.id for _, one in page.events if one.kind in ("completed", "failed", "cancelled"))
        after = page.offset
    return ends


async def check_flows_under_kills(app: Dibs, flows: int, kills: int, seed: int) -> None:
    killer = Killer(kills, random.Random(seed))
    tickets = [await kill_app.build(number).enqueue() for number in range(flows // 2)]
    working = asyncio.create_task(run(app, processes=2, progress=killer.on_progress))
    killing = asyncio.create_task(killer.kill())
    try:
        await asyncio.wait_for(killer.has_killed.wait(), TIMEOUT)
        tickets += [await kill_app.build(number).enqueue() for number in range(flows // 2, flows)]
        results = await asyncio.gather(*(ticket.result(wait=TIMEOUT) for ticket in tickets))
    finally:
        killing.cancel()
        working.cancel()
        await asyncio.gather(killing, working, return_exceptions=True)
    statuses = [await app.get_flow(ticket.id).status() for ticket in tickets]
    ends = {queue: await count_ends(app, queue) for queue in (FLOWS, *kill_app.QUEUES)}

    assert [kill_app.expected(number) for number in range(flows)] == results
    for status in statuses:
        assert status is not None
        assert kill_app.STATES == [node.state for node in status.nodes]
    # The nested flows are in the queue of the flows, too.
    assert 2 * flows == len(ends[FLOWS])
    assert flows * (kill_app.PARTS + 4) == len(ends[kill_app.double.queue.name])
    assert {1} == {number for counted in ends.values() for number in counted.values()}


@pytest.mark.parametrize("app", ["file"], indirect=True)
async def test_six_flows_end_once_under_kills(app: Dibs) -> None:
    await check_flows_under_kills(app, *SHORT, seed=1)


@pytest.mark.chaos
@pytest.mark.parametrize("app", ["file", "redis", "postgresql"], indirect=True)
@pytest.mark.parametrize("seed", range(3))
async def test_fifty_flows_end_once_under_kills(app: Dibs, seed: int) -> None:
    await check_flows_under_kills(app, *LONG, seed=seed)
