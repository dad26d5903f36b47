"""Worker processes are killed at random moments: each flow ends once, with the results of all its nodes."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from attrs import define, field

from dibs import Batch, BatchClosed, BatchSummary, Dibs, JobAbsent
from dibs.flow.batch import evaluation
from dibs.model.wakeup import FLOWS
from dibs.worker import WorkReport, run
from dibs.worker.supervisor import workers
from tests.background_worker import background_worker
from tests.flow import kill_app
from tests.flow.batch_producer import SEGMENT
from tests.flow.kill_app import add_up, double, fail
from tests.flow.tasks import Tasks
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


# -- A batch whose producer is killed ends with the members that the producer has added --------------


PROJECT = Path(__file__).parent.parent.parent


async def run_and_kill(url: str, queue: str, seconds: float) -> int:
    """Run a producer, kill it some time after its first line, and return the number of its lines."""
    producer = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.flow.batch_producer", url, queue),
        cwd=PROJECT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert producer.stdout is not None
    await producer.stdout.readline()
    await asyncio.sleep(seconds)
    producer.kill()
    lines = (await producer.stdout.read()).count(b"\n")
    await producer.wait()
    return 1 + lines


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
async def test_a_batch_ends_after_its_producer_was_killed(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "GRACE", 500)
    url = f"file:{tmp_path / 'jobs'}"
    tasks = Tasks(url)
    async with tasks.app, background_worker(tasks.app):
        segments = await run_and_kill(url, tasks.load.queue.name, random.Random(seed).uniform(0, 0.3))
        ticket = await tasks.app.get_batch("b").ticket()
        summary = await ticket.result(wait=60)
        results = [one.result async for one in tasks.app.get_batch("b").results()]
        with pytest.raises(BatchClosed):
            await tasks.app.get_batch("b").enqueue_many([tasks.load.bind("", 0)])
        counts = await tasks.load.queue.counts()

    added = summary.completed
    assert summary.producer_lost
    assert (
        BatchSummary(
            members=added + summary.missing, completed=added, missing=summary.missing, producer_lost=True
        )
        == summary
    )
    assert 0 == added % SEGMENT
    assert summary.missing in (0, SEGMENT)
    # The producer was killed after the enqueue of a segment and before its line, or in the middle of it.
    assert segments * SEGMENT <= added <= (segments + 1) * SEGMENT
    assert [2 * number for number in range(added)] == results
    assert added == counts.completed


async def test_an_unknown_batch_has_no_ticket(tasks: Tasks) -> None:
    with pytest.raises(JobAbsent):
        await tasks.app.get_batch("unknown").ticket()
    assert not await tasks.app.get_batch("unknown").close()
    assert "not_found" == await tasks.app.get_batch("unknown").cancel()


# -- Worker processes are killed at random moments: each batch ends once, and each callback is enqueued once


__all__ = ["app"]
BATCHES = 4
MEMBERS = 20


async def add_batch(opened: Dibs, number: int) -> Batch:
    """Enqueue a batch; each second one has a member that fails."""
    callbacks = {name: add_up.bind([number]) for name in ("on_success", "on_finish", "on_first_failure")}
    async with opened.batch(id=f"batch-{number}", **callbacks) as batch:  # type: ignore[arg-type]
        await batch.enqueue_many(double.bind(one) for one in range(MEMBERS))
        await batch.enqueue_many([fail.bind("planned") if number % 2 else double.bind(MEMBERS)])
    return batch


@pytest.mark.long
@pytest.mark.parametrize("app", ["file", "redis", "postgresql"], indirect=True)
async def test_each_callback_is_enqueued_once_under_kills(app: Dibs) -> None:
    killer = Killer(6, random.Random(1))
    working = asyncio.create_task(run(app, processes=2, progress=killer.on_progress))
    killing = asyncio.create_task(killer.kill())
    try:
        batches = [await add_batch(app, number) for number in range(BATCHES // 2)]
        await asyncio.wait_for(killer.has_killed.wait(), TIMEOUT)
        batches += [await add_batch(app, number) for number in range(BATCHES // 2, BATCHES)]
        summaries = [await batch.ticket.result(wait=TIMEOUT) for batch in batches]
        async with asyncio.timeout(TIMEOUT):
            while (await add_up.queue.counts()).completed < BATCHES * 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        killing.cancel()
        working.cancel()
        await asyncio.gather(killing, working, return_exceptions=True)
    flow_ends, callback_ends = await count_ends(app, FLOWS), await count_ends(app, add_up.queue.name)

    for number, summary in enumerate(summaries):
        failed = number % 2
        completed = MEMBERS + 1 - failed
        assert BatchSummary(members=MEMBERS + 1, completed=completed, failed=failed) == summary
        assert 1 == flow_ends[f"batch-{number}"]
    names = sorted((id.split("/")[0], id.rpartition("/")[2]) for id in callback_ends)
    assert names == sorted(
        (f"batch-{number}", name)
        for number in range(BATCHES)
        for name in ("on_finish", "on_first_failure" if number % 2 else "on_success")
    )
    assert {1} == set(callback_ends.values())
