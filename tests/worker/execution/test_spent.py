"""A handler says what its run has spent, and the settlement moves the clocks of the rates by it."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import Dibs, Rate, Refused, Retry, Snooze, current_job
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.model.job import ActiveRun, Job, JobData
from dibs.worker import run
from tests.worker.jobs import add, put

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
