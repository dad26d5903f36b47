"""The ends of `run`: until="idle" leaves the jobs that are due later."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextvars import ContextVar
from datetime import timedelta
from types import FrameType

import pytest

from dibs import Dibs, Fixed
from dibs.client.work_report import WorkReport
from dibs.storage.indexed import reading
from dibs.worker import run
from tests.worker.jobs import wait_for_count

#: Set once a successor is enqueued.
SUCCESSOR: ContextVar[asyncio.Event] = ContextVar("successor")
TOMORROW = timedelta(days=1)


@pytest.fixture
async def memory() -> AsyncIterator[Dibs]:
    async with Dibs("memory:") as app:
        yield app


def double(number: int) -> int:
    return 2 * number


async def fails() -> None:
    raise ValueError("no")


async def first_waits(number: int) -> None:
    if number == 1:
        await SUCCESSOR.get().wait()


async def run_until_idle(app: Dibs) -> WorkReport:
    async with asyncio.timeout(20):
        return await run(app, until="idle", poll=0.3)


async def test_idle_runs_due_jobs_and_leaves_the_others(memory: Dibs) -> None:
    task = memory.task(queue="double")(double)
    later = await task.options(delay=TOMORROW).enqueue(3)
    due = await task.enqueue(4)

    report = await run_until_idle(memory)

    assert (1, 8) == (report.total("completed"), await due.result(wait=0))
    assert 1 == (await memory.storage.counts(["double"]))["double"].scheduled
    assert "waiting" == (await later.status()).state


async def test_idle_leaves_a_retry_that_is_due_later(memory: Dibs) -> None:
    await memory.task(queue="fails", backoff=Fixed(86_400))(fails).enqueue()

    report = await run_until_idle(memory)

    assert (1, 0) == (report.total("retried"), report.total("failed"))


async def test_idle_waits_for_runs_and_their_successors(memory: Dibs) -> None:
    token = SUCCESSOR.set(asyncio.Event())
    task = memory.task(queue="twice")(first_waits)
    await task.options(id="a").enqueue(1)

    running = asyncio.create_task(run_until_idle(memory))
    await wait_for_count(memory, "twice", "active")
    await task.options(id="a").enqueue(2)
    SUCCESSOR.get().set()

    assert 2 == (await running).total("completed")
    SUCCESSOR.reset(token)


@pytest.mark.long
async def test_idle_does_not_trust_an_estimate(memory: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage with many scheduled jobs also counts a job as scheduled that has just fallen due."""
    monkeypatch.setattr(reading, "COUNTED", 3)
    task = memory.task(queue="double")(double)
    for number in range(5):
        await task.options(delay=TOMORROW).enqueue(number)
    await memory.queue("double").pause()
    due = await task.options(delay=timedelta(milliseconds=1)).enqueue(4)
    await asyncio.sleep(0.01)
    await memory.queue("double").resume()

    await run_until_idle(memory)

    assert 8 == await due.result(wait=0)


# -- The cost of a worker's start, which grows with the number of its tasks, and not with the square of it


SOME, MORE = 400, 1600


async def probe() -> None: ...


async def calls_until_the_first_job(tasks: int) -> int:
    """Return the number of calls from the start of a worker until it has run a job."""
    app, calls = Dibs("memory:"), 0
    for number in range(tasks):
        app.task(queue=f"periodic-{number}", cron="0 0 1 1 *")(probe)

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        async with app, asyncio.TaskGroup() as group:
            ticket = await app.task(queue="probe")(probe).enqueue()
            group.create_task(app.work())
            await ticket.result(wait=300)
            app.stop()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.long
async def test_four_times_as_many_tasks_cost_about_four_times_as_much() -> None:
    some, more = await calls_until_the_first_job(SOME), await calls_until_the_first_job(MORE)

    # Four times as many tasks cost 13 times as many calls when each step looked at all queues.
    assert more < 8 * some, f"{some} calls with {SOME} tasks, {more} with {MORE}"
