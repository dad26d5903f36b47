"""beequeue and bee-queue: delayed jobs and backoff."""

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
from tests.lineage import scripted_handlers
from tests.lineage.protocol_client import START, ProtocolClient
from tests.lineage.scripted_handlers import claim_one, run_until_empty, set_handler

# -- delays ------------------------------------------------------------------------------------------------


async def test_a_delayed_job_needs_nothing_but_a_worker(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The claim respects run_at; no scheduler process is needed."""
    set_handler(queue)
    await queue.enqueue(1, delay=0.05)
    await run_until_empty(app)

    [event] = await scripted_handlers.read_events(queue, 1)
    assert event.claimed_at is not None
    assert event.run_at is not None
    assert event.claimed_at >= event.run_at


async def test_nobody_runs_early_and_a_crowd_comes_in_the_order_of_its_times(
    protocol: ProtocolClient,
) -> None:
    """Contract 2: jobs run at their time, in the order of their times, after jobs that were due before."""
    for id, delay in (("3", 3000), ("1", 1000), ("2", 2000)):
        await protocol.enqueue(id, delay=delay)
    for early in (1, 998):
        protocol.now += early
        assert [] == await protocol.claim()
    await protocol.enqueue("0")
    protocol.now += 5000
    await protocol.enqueue("4")

    assert ["0", "1", "2", "3", "4"] == [job.id for job in await protocol.claim()]


async def test_removing_a_delayed_job_leaves_nothing_to_trip_over(protocol: ProtocolClient) -> None:
    """A cancelled or forgotten job is not counted, and is not claimed when its time comes."""
    for id in ("cancelled", "forgotten", "stays"):
        await protocol.enqueue(id, delay=1000)
    await protocol.cancel("cancelled")
    await protocol.storage.forget("q", ["forgotten"], now=protocol.now)
    counts = (await protocol.storage.counts(["q"], now=protocol.now))["q"]
    assert (1, 1) == (counts.waiting, counts.scheduled)
    protocol.now += 1000

    assert ["stays"] == [job.id for job in await protocol.claim()]
    protocol.now += 1_000_000
    assert ["stays"] == [reaped.id for reaped in await protocol.reap()]


async def test_what_falls_due_before_the_wait_begins_ends_it(protocol: ProtocolClient) -> None:
    """A wait with the token of a claim returns at once if a job became due after that claim."""
    await protocol.enqueue(delay=5)
    lease = await protocol.new_lease()
    claim = await protocol.storage.claim("q", lease, 1, now=protocol.now)
    protocol.now += 5
    await protocol.storage.counts(["q"], now=protocol.now)

    assert ((), protocol.now) == (claim.jobs, claim.next_due)
    wake = await protocol.storage.wait(["q"], since={"q": claim.token}, timeout=0)
    assert wake.woken


async def test_many_may_be_due_at_the_same_moment(protocol: ProtocolClient) -> None:
    """All 9000 jobs with the same time are claimed once, in the order of their enqueues."""
    from dibs.model.job import NewJob
    from dibs.model.requests import EnqueueRequest

    for thousand in range(9):
        jobs = [NewJob(id=f"{thousand}{n:03}", run_at=START + 5) for n in range(1000)]
        await protocol.storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs], now=protocol.now)
    protocol.now += 5
    ids = [job.id for _ in range(9) for job in await protocol.claim(1000)]

    assert [f"{number:04}" for number in range(9000)] == ids


async def test_a_moment_to_run_at(queue: Queue) -> None:
    """A time in the past is due at once, and a value that is not a datetime is refused."""
    now = datetime.now(UTC)
    await queue.enqueue(1, id="past", run_at=now - timedelta(days=1))
    await queue.enqueue(1, id="future", run_at=now + timedelta(days=1))
    with pytest.raises(Refused):
        await queue.enqueue(1, run_at="never")  # type: ignore[arg-type]

    assert "past" == (await claim_one(queue)).id
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
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, backoff: Any, expected: list[int]
) -> None:
    """The first retry waits for the base; Exponential doubles the delay up to its cap. A job can have its own
    backoff.
    """
    set_handler(queue, max_retries=3)
    await queue.configure(log_level="runs")
    await queue.enqueue({"fail": 9}, id="a", backoff=backoff)
    await run_until_empty(app)

    events = await scripted_handlers.read_events(queue, 4)
    ends = [event.finished_at for event in events[:3]]
    starts = [event.run_at for event in events[1:]]
    pauses = [start - end for start, end in zip(starts, ends, strict=True) if start and end]
    assert expected == [round(pause.total_seconds() * 1000) for pause in pauses]


async def test_a_handler_may_have_a_strategy_of_its_own(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Retry(delay=...) overrides the backoff and its cap."""
    set_handler(queue, backoff=Fixed(3600))
    await queue.enqueue({"retry_delay": 0.01}, id="a")
    await run_until_empty(app)

    assert ["retried", "completed"] == [event.kind for event in await scripted_handlers.read_events(queue, 2)]
