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
