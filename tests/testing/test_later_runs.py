"""Snoozes, steps, hand-offs and start deadlines in a rehearsal: the clock jumps, and runs are real."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, Snooze, current_job
from dibs.testing import using
from tests.worker.jobs import add

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def app() -> Dibs:
    return Dibs()


class Runs:
    """Handlers that record their calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def snoozes(self) -> str:
        self.calls.append(current_job().attempt)
        if len(self.calls) < 3:
            raise Snooze(delay="1h")
        return "done"

    async def steps(self) -> Any:
        job = current_job()
        result = await job.step("charge", self.charge, job.step_key("charge"))
        if job.retries == 0:
            raise ValueError("after the step")
        return result

    def steps_blocking(self) -> Any:
        job = current_job()
        result = job.step("charge", self.charge, job.step_key("charge"))
        if job.retries == 0:
            raise ValueError("after the step")
        return result

    def charge(self, key: str) -> str:
        self.calls.append(key)
        return key


async def test_the_clock_jumps_over_snoozes(app: Dibs) -> None:
    runs = Runs()
    add(app, "q", runs.snoozes, max_retries=0)
    async with using(app, start=NOON) as rehearsal:
        await app.queue("q").enqueue([], id="a")
        report = await rehearsal.run_until_empty()

        assert NOON + timedelta(hours=2) == rehearsal.now
        assert (2, 0) == (report.queue("q").released, report.queue("q").retried)
        assert [1, 1, 1] == runs.calls


@pytest.mark.parametrize("name", ["steps", "steps_blocking"])
async def test_a_step_runs_once_over_all_runs(app: Dibs, name: str) -> None:
    runs = Runs()
    add(app, "q", getattr(runs, name))
    async with using(app) as rehearsal:
        ticket = await app.queue("q").enqueue([])
        await rehearsal.run_until_empty()

        assert [await ticket.result(wait=0)] == runs.calls


def test_steps_of_a_blocking_test_run_on_its_thread(app: Dibs) -> None:
    runs = Runs()
    add(app, "q", runs.steps_blocking)
    with using(app, threads=False) as rehearsal:
        ticket = app.sync.queue("q").enqueue([])
        rehearsal.sync.run_until_empty()

        assert [ticket.result(wait=0)] == runs.calls
