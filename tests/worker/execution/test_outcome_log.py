"""The log lines about the end of a run."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import pytest

from dibs import Rate, Refused, Snooze, current_job
from dibs.app import Dibs
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.errors import PermanentError, Retry
from dibs.model.job import ActiveRun, Job, JobData
from dibs.model.retry import Fixed
from dibs.worker import run
from tests.worker.execution.test_outcome import Raiser, stall, stop_worker
from tests.worker.jobs import add, outcome, put


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def test_a_final_failure_is_an_error_with_the_traceback_and_its_causes(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    def handler() -> None:
        try:
            int("no number")
        except ValueError as error:
            raise KeyError("outer") from error

    add(app, "q", handler, max_retries=0)
    await put(app, "q", "a")
    await run(app, until="empty")

    [line] = lines(caplog, logging.ERROR)
    assert line.startswith("q/a: failed: KeyError: 'outer'\nTraceback (most recent call last):\n")
    assert (
        line.index("ValueError: invalid literal") < line.index("was the cause of") < line.rindex("KeyError:")
    )
    assert "in handler" in line


async def test_a_retry_is_a_warning_with_the_time_of_the_next_run(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    at = datetime(2100, 1, 1, tzinfo=UTC)
    add(app, "later", Raiser(Retry("busy", at=at)), max_retries=None)
    add(app, "soon", Raiser(ValueError()), backoff=Fixed(3600), max_retries=4)
    add(app, "stop", stop_worker)
    for queue in ("later", "soon", "stop"):
        await put(app, queue, "a")
    await run(app)

    later, soon = sorted(lines(caplog, logging.WARNING))
    assert later.startswith("later/a: dibs.errors.Retry: busy; retry 1 in ")
    assert later.endswith(", at 2100-01-01 00:00:00 UTC")
    assert soon.startswith("soon/a: ValueError; retry 1 of 4 in 3600 s, at 2")


async def test_a_retry_of_a_tick_is_logged_with_the_time_of_the_next_tick(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    add(app, "q", Raiser(ValueError()), backoff=Fixed(7200))
    add(app, "stop", stop_worker)
    queue = app.queue("q")
    tick = await queue.schedules.set("a", queue.bind(None), every="1h")
    await queue.amend(tick.job.id, delay=0)
    await put(app, "stop", "a")
    await run(app)

    [line] = lines(caplog, logging.WARNING)
    assert line.endswith(":00:00 UTC")


async def test_a_failure_without_a_handler_is_logged_too(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    add(app, "stalled", lambda: 7, max_stalls=0)
    add(app, "large", lambda: "x" * 2_000_000)
    await put(app, "stalled", "a")
    await stall(app, "stalled")
    await put(app, "large", "a")
    await run(app, until="empty")

    large, stalled = sorted(lines(caplog, logging.ERROR))
    assert large.startswith("large/a: failed: CompletionRefused: ")
    assert stalled.startswith("stalled/a: failed: TooManyStalls: ")


async def test_a_completed_run_is_a_debug_line(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dibs.worker")
    add(app, "q", lambda: 7)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert "q/a: completed" in lines(caplog, logging.DEBUG)


async def test_a_filter_that_raises_does_not_stop_the_settlement(app: Dibs) -> None:
    class Breaks(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise RuntimeError

    breaks, logger = Breaks(), logging.getLogger("dibs.worker")
    add(app, "q", Raiser(PermanentError("no")))
    await put(app, "q", "a")
    logger.addFilter(breaks)
    try:
        await run(app, until="empty")
    finally:
        logger.removeFilter(breaks)

    assert "failed" == (await outcome(app, "q", "a")).kind


# -- A handler says what its run has spent, and the settlement moves the clocks of the rates by it ---


#: One start an hour: what is not given back holds the next job for longer than any test runs.
RARELY = Rate(1_000, per="1h", unit=1_000)


def job_with_unit(unit: int) -> CurrentJob:
    active = ActiveRun(fence=1, lease="l", holder="h", claimed_at=0)
    job = Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=active)
    return CurrentJob(RunEnvironment(None, "q", None, unit=unit), job, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize("end", [None, Snooze(delay=0), Retry(delay=0), ValueError("no")])
async def test_a_run_that_spent_nothing_gives_its_start_back(
    app: Dibs, kind: str, end: Exception | None
) -> None:
    """Each job starts at once, also after a run that came back or failed."""
    ended: list[str] = []

    def handler() -> None:
        job = current_job()
        job.spent(0)
        first = job.id not in ended
        ended.append(job.id)
        if first and end is not None:
            raise end

    async def async_handler() -> None:
        handler()

    add(app, "q", async_handler if kind == "async" else handler)
    await app.queue("q").configure(rate=RARELY)
    await put(app, "q", "a", "b", "c")
    await run(app, until="empty")

    assert {"a", "b", "c"} == set(ended)


@pytest.mark.parametrize(
    ("unit", "amounts", "cost"), [(1000, [3200], 3200), (500, [1, 2], 6), (3000, [1], 1)]
)
def test_calls_add_up_and_a_cost_is_rounded_up(unit: int, amounts: list[int], cost: int) -> None:
    job = job_with_unit(unit)
    assert job.cost is None
    for amount in amounts:
        job.spent(amount)

    assert cost == job.cost


@pytest.mark.parametrize("amount", [-1, 0.5, True, "1", None, 1_000_000_001])
def test_a_bad_amount_is_refused_and_counts_nothing(amount: Any) -> None:
    job = job_with_unit(1000)
    job.spent(1)

    with pytest.raises(Refused) as refused:
        job.spent(amount)

    assert isinstance(refused.value, ValueError)
    assert ("amount", 1) == (refused.value.field, job.cost)
