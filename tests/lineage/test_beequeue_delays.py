"""beequeue and bee-queue: jobs that wait for their time, and how long a retry waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import (
    Dibs,
    Exponential,
    Fixed,
    Immediate,
    Queue,
    Refused,
)
from tests.lineage import actors
from tests.lineage.actors import claimed, play, work
from tests.lineage.clerk import START, Clerk

# -- delays ------------------------------------------------------------------------------------------------


async def test_a_delayed_job_needs_nothing_but_a_worker(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """No loop to start, no flag to set, and no other client: the claim itself honours run_at."""
    play(queue)
    await queue.enqueue(1, delay=0.05)
    await work(app)

    [event] = await actors.read(queue, 1)
    assert event.claimed_at is not None
    assert event.run_at is not None
    assert event.claimed_at >= event.run_at


async def test_nobody_runs_early_and_a_crowd_comes_in_the_order_of_its_times(clerk: Clerk) -> None:
    """Contract 2: not a second early, not in reverse, and not ahead of what was due before."""
    for id, delay in (("3", 3000), ("1", 1000), ("2", 2000)):
        await clerk.put(id, delay=delay)
    for early in (1, 998):
        clerk.now += early
        assert [] == await clerk.claim()
    await clerk.put("0")
    clerk.now += 5000
    await clerk.put("4")

    assert ["0", "1", "2", "3", "4"] == [job.id for job in await clerk.claim()]


async def test_removing_a_delayed_job_leaves_nothing_to_trip_over(clerk: Clerk) -> None:
    """Cancelled or forgotten, its id is in no schedule, no count, no claim, now or when its time comes."""
    for id in ("cancelled", "forgotten", "stays"):
        await clerk.put(id, delay=1000)
    await clerk.cancel("cancelled")
    await clerk.storage.forget("q", ["forgotten"], now=clerk.now)
    counts = (await clerk.storage.counts(["q"], now=clerk.now))["q"]
    assert (1, 1) == (counts.waiting, counts.scheduled)
    clerk.now += 1000

    assert ["stays"] == [job.id for job in await clerk.claim()]
    clerk.now += 1_000_000
    assert ["stays"] == [reaped.id for reaped in await clerk.reap()]


async def test_what_falls_due_before_the_wait_begins_ends_it(clerk: Clerk) -> None:
    """A wait since a claim returns at once for a job that fell due after that claim, however soon."""
    await clerk.put(delay=5)
    lease = await clerk.lease()
    claim = await clerk.storage.claim("q", lease, 1, now=clerk.now)
    clerk.now += 5
    await clerk.storage.counts(["q"], now=clerk.now)

    assert ((), clerk.now) == (claim.jobs, claim.next_due)
    wake = await clerk.storage.wait(["q"], since={"q": claim.token}, timeout=0)
    assert wake.woken


async def test_many_may_be_due_at_the_same_moment(clerk: Clerk) -> None:
    """Nine thousand equal times: all come, each once, in the order in which they were enqueued."""
    from dibs.model.job import NewJob
    from dibs.model.requests import EnqueueRequest

    for thousand in range(9):
        jobs = [NewJob(id=f"{thousand}{n:03}", run_at=START + 5) for n in range(1000)]
        await clerk.storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs], now=clerk.now)
    clerk.now += 5
    ids = [job.id for _ in range(9) for job in await clerk.claim(1000)]

    assert [f"{number:04}" for number in range(9000)] == ids


async def test_a_moment_to_run_at(queue: Queue) -> None:
    """Past is at once, future is then, and what is no moment is refused."""
    now = datetime.now(UTC)
    await queue.enqueue(1, id="past", run_at=now - timedelta(days=1))
    await queue.enqueue(1, id="future", run_at=now + timedelta(days=1))
    with pytest.raises(Refused):
        await queue.enqueue(1, run_at="never")  # type: ignore[arg-type]

    assert "past" == (await claimed(queue)).id
    assert 1 == (await queue.counts()).scheduled


# -- backoff -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Immediate(), [0, 0, 0]),
        (Fixed(0.007), [7, 7, 7]),
        (Exponential(0.004, 3600), [4, 8, 16]),
        (Exponential(0.004, 0.01), [4, 8, 10]),
    ],
)
async def test_strategies_of_backoff(
    app: Dibs, queue: Queue, stage: actors.Stage, backoff: Any, expected: list[int]
) -> None:
    """The first retry waits the base; exponential doubles up to its cap; a job may bring its own."""
    play(queue, max_retries=3)
    await queue.configure(log_level="runs")
    await queue.enqueue({"fail": 9}, id="a", backoff=backoff)
    await work(app)

    events = await actors.read(queue, 4)
    ends = [event.finished_at for event in events[:3]]
    starts = [event.run_at for event in events[1:]]
    pauses = [start - end for start, end in zip(starts, ends, strict=True) if start and end]
    assert expected == [round(pause.total_seconds() * 1000) for pause in pauses]


async def test_a_handler_may_have_a_strategy_of_its_own(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """By raising Retry(delay=...), which no cap cuts."""
    play(queue, backoff=Fixed(3600))
    await queue.enqueue({"again": 0.01}, id="a")
    await work(app)

    assert ["retried", "completed"] == [event.kind for event in await actors.read(queue, 2)]
