"""A batch ends once and enqueues each callback once, wherever its evaluations and its producer stop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from dibs import Batch, BatchSummary, Bound
from dibs.client.calls.current_job import CURRENT_JOB, CurrentJob, RunEnvironment
from dibs.flow.batch import evaluation, segments
from dibs.flow.batch.segments import PRODUCERS
from dibs.model.job import Job
from dibs.model.wakeup import FLOWS
from tests.flow.driver import Crashed, Driver, Stop, stopped_at_each_call

ON_SUCCESS, ON_FINISH, ON_FIRST_FAILURE = 100, 101, 102
MEMBERS = 7


@pytest.fixture(autouse=True)
def small_and_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut segments of three members, and count a missing segment as missing at once."""
    monkeypatch.setattr(segments, "MAX_MEMBERS", 3)
    monkeypatch.setattr(evaluation, "GRACE", 0)


def member(driver: Driver, number: int) -> Bound[Any]:
    bound: Bound[Any] = driver.task.options(attributes={"number": number}).bind([])
    return bound


def new_batch(driver: Driver) -> Batch:
    return driver.app.batch(
        id="b",
        on_success=member(driver, ON_SUCCESS),
        on_finish=member(driver, ON_FINISH),
        on_first_failure=member(driver, ON_FIRST_FAILURE),
    )


async def summary_of(driver: Driver) -> BatchSummary:
    """Return the summary of the batch, and check that it ended once."""
    events = await driver.storage.events(FLOWS)
    (slot,) = await driver.storage.get(FLOWS, ["b"])

    assert 1 == sum(event.kind in ("completed", "failed") and event.id == "b" for _, event in events.events)
    assert slot.outcome is not None
    assert slot.outcome.result is not None
    return msgspec.json.decode(slot.outcome.result, type=BatchSummary)


@pytest.mark.parametrize("failing", [set(), {1, 4, 5}], ids=["all complete", "some fail"])
@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_an_evaluation_may_stop_at_each_of_its_calls(stop: Stop, failing: set[int]) -> None:
    expected = {*range(MEMBERS), ON_FINISH, ON_FIRST_FAILURE if failing else ON_SUCCESS}
    failed = len(failing)
    async for driver in stopped_at_each_call(stop, least=20):
        driver.failing = failing
        async with new_batch(driver) as batch:
            await batch.enqueue_many(member(driver, number) for number in range(MEMBERS))
        assert "completed" == await driver.run("b")
        summary = await summary_of(driver)

        assert BatchSummary(members=MEMBERS, completed=MEMBERS - failed, failed=failed) == summary
        assert dict.fromkeys(expected, 1) == Counter(driver.ran)


@pytest.mark.parametrize("stop", ["before", "after"])
async def test_a_producer_may_stop_at_each_of_its_calls(stop: Stop) -> None:
    stops = 0
    while True:
        driver = Driver(rng=random.Random(stops))
        driver.storage.stop_at, driver.storage.stop = stops + 1, stop
        async with driver.opened():
            has_stopped = await produce(driver)
            await driver.app.get_batch("b").close()
            assert "completed" == await driver.run("b")
            summary = await summary_of(driver)
        ran = Counter(driver.ran)
        assert summary.completed == summary.members - summary.missing
        assert set(range(summary.completed)) <= set(ran)
        assert ON_FIRST_FAILURE in ran if summary.missing else ON_SUCCESS in ran
        assert summary.completed + 2 == len(driver.ran) == len(ran)
        if not has_stopped:
            break
        stops += 1

    assert MEMBERS == summary.completed
    assert stops > 10


async def produce(driver: Driver) -> bool:
    """Add members as a process of its own, which may stop. Return whether it did."""
    batch = await new_batch(driver).__aenter__()
    driver.storage.is_evaluating = True
    try:
        await batch.enqueue_many(member(driver, number) for number in range(MEMBERS))
        await batch.close()
    except Crashed:
        return True
    finally:
        driver.storage.is_evaluating = False
        PRODUCERS._by_storage.clear()
    return False


class GrowingDriver(Driver):
    """A driver whose members add members to their batch: two each, down to the number 0."""

    async def _run(self, queue: str, job: Job) -> None:
        number = msgspec.json.decode(job.data.attributes["number"]) if queue == "join" else 0
        if 0 < number < ON_SUCCESS:
            loop = asyncio.get_running_loop()
            token = CURRENT_JOB.set(CurrentJob(RunEnvironment(self.storage, queue, loop), job, None))
            await self.app.get_batch().enqueue_many(member(self, number - 1) for _ in range(2))
            CURRENT_JOB.reset(token)
        await super()._run(queue, job)


@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_no_member_runs_after_the_callbacks_if_members_add_members(stop: Stop) -> None:
    for seed in range(40):
        driver = GrowingDriver(rng=random.Random(seed), evaluators=2)
        driver.storage.stop_at, driver.storage.stop = driver.rng.randrange(1, 120), stop
        async with driver.opened():
            async with new_batch(driver) as batch:
                await batch.enqueue_many([member(driver, 3)])
            assert "completed" == await driver.run("b")
            summary = await summary_of(driver)

        assert BatchSummary(members=15, completed=15) == summary
        assert {3: 1, 2: 2, 1: 4, 0: 8} == Counter(driver.ran[:15])
        assert {ON_SUCCESS: 1, ON_FINISH: 1} == Counter(driver.ran[15:])


@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_a_cancel_may_stop_at_each_of_its_calls(stop: Stop) -> None:
    for stops in range(60):
        driver = Driver(rng=random.Random(stops))
        driver.storage.stop_at, driver.storage.stop = stops + 1, stop
        async with driver.opened():
            async with new_batch(driver) as batch:
                await batch.enqueue_many(member(driver, number) for number in range(MEMBERS))
            await driver.run_steps(stops % 12)
            cancelled = await batch.cancel()
            state = await driver.run("b")
            waiting = await driver.task.queue.counts()
            ends = [one.state async for one in batch.results()]
        assert ("cancelled" if cancelled == "requested" else cancelled) == state
        assert (0, 0) == (waiting.waiting, waiting.active)
        assert {1} == set(Counter(driver.ran).values())
        assert ON_FINISH in driver.ran
        assert MEMBERS == len(ends)
        assert sum(number < MEMBERS for number in driver.ran) == ends.count("completed")
