"""A batch whose producer is killed ends with the members that the producer has added."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from dibs import BatchClosed, BatchSummary, JobAbsent
from dibs.flow.batch import evaluation
from tests.background_worker import background_worker
from tests.flow.batch_producer import SEGMENT
from tests.flow.tasks import Tasks

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
