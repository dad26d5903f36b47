"""A flow ends once, and each node runs once, wherever evaluations stop and whatever wake-ups are lost."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

import pytest

from dibs import Refused
from dibs.flow.running import evaluation
from dibs.flow.running.evaluation import EvaluationError
from dibs.model.wakeup import FLOWS
from tests.flow.driver import Driver, Graph, Stop, stopped_at_each_call

DIAMOND = Graph([[], [0], [0], [1, 2], []], [[], [], [], [], [3]], [[], [], [], [], []])
WITH_FAILURES = Graph(
    [[], [0], [], [1], [], []], [[], [], [0], [], [], [2]], [[], [], [], [], [3], []], frozenset({1})
)


async def check(driver: Driver, graph: Graph, state: str) -> None:
    """Check that the flow ended once, as a plain replay says, and that nodes ran once after their parents."""
    expected = graph.expected()
    status = await driver.app.get_flow("f").status()
    events = await driver.storage.events(FLOWS)

    assert ("failed" if graph.fails() else "completed") == state
    assert status is not None
    assert expected == [node.state for node in status.nodes]
    assert {n: 1 for n, one in enumerate(expected) if one != "skipped"} == Counter(driver.ran)
    for number in driver.ran:
        before = driver.ran[: driver.ran.index(number)]
        parents = {*graph.arguments[number], *graph.after[number]}
        assert parents <= set(before)
    assert 1 == sum(event.kind in ("completed", "failed", "cancelled") for _, event in events.events)


@pytest.fixture(autouse=True)
def always_full(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Read all open nodes in each evaluation of half of the tests, and only watched nodes in the others."""
    monkeypatch.setattr(evaluation, "FULL_READ", 0.0 if "full" in request.node.name else 1e9)
    monkeypatch.setattr(evaluation, "SHARED_TIMERS", (0.0, 0.0))


@pytest.mark.parametrize("reads", ["full", "watched"])
@pytest.mark.parametrize("graph", [DIAMOND, WITH_FAILURES], ids=["diamond", "failures"])
@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_an_evaluation_may_stop_at_each_of_its_calls(stop: Stop, graph: Graph, reads: str) -> None:
    async for driver in stopped_at_each_call(stop, least=10):
        await driver.enqueue(graph)
        await check(driver, graph, await driver.run())


@pytest.mark.parametrize("reads", ["full", "watched"])
@pytest.mark.parametrize("wakes", [True, False], ids=["wake-ups", "no wake-ups"])
async def test_random_graphs_end_as_a_plain_replay_says(wakes: bool, reads: str) -> None:  # noqa: FBT001
    for seed in range(60):
        rng = random.Random(seed)
        graph = Graph.draw(rng, rng.randrange(1, 14))
        driver = Driver(rng=rng, wakes=wakes, evaluators=2)
        driver.storage.stop_at = rng.randrange(1, 60)
        driver.storage.stop = rng.choice(["before", "after", "freeze"])
        async with driver.opened():
            await driver.enqueue(graph)
            await check(driver, graph, await driver.run())


@pytest.mark.parametrize("reads", ["full", "watched"])
@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_a_retry_may_stop_at_each_of_its_calls(stop: Stop, reads: str) -> None:
    async for driver in stopped_at_each_call(stop, least=15):
        await driver.enqueue(WITH_FAILURES)
        assert "failed" == await driver.run()
        driver.failing.clear()
        assert "queued" == await driver.app.get_flow("f").retry_failed()
        assert "completed" == await driver.run()
        assert Counter([0, 1, 1, 2, 3, 4, 5]) == Counter(driver.ran)


@pytest.mark.parametrize("reads", ["full", "watched"])
@pytest.mark.parametrize("stop", ["before", "after", "freeze"])
async def test_a_cancel_may_stop_at_each_of_its_calls(stop: Stop, reads: str) -> None:
    """The cancel comes after one to seven steps, so that evaluations make calls in most of the runs."""
    stopped = 0
    for call, steps in product(range(1, 10), range(1, 9, 2)):
        driver = Driver(rng=random.Random(call))
        driver.storage.stop_at, driver.storage.stop = call, stop
        async with driver.opened():
            await driver.enqueue(DIAMOND)
            await driver.run_steps(steps)
            cancelled = await driver.app.get_flow("f").cancel()
            state = await driver.run()
            status = await driver.app.get_flow("f").status()
            waiting = await driver.task.queue.counts()
        stopped += driver.storage.calls.total() >= call

        assert status is not None
        assert ("cancelled" if cancelled in ("cancelled", "requested") else cancelled) == state
        assert 0 == waiting.waiting
    assert stopped > 15


async def test_an_evaluation_is_retried_after_an_error_that_allows_no_retry() -> None:
    driver = Driver()
    async with driver.opened():
        await driver.enqueue(DIAMOND)
        driver.storage.error = Refused("the storage refuses it", field="x")
        driver.storage.stop_at = 1
        await driver.run_steps(1)
        with pytest.raises(EvaluationError, match="refuses it"):
            await driver.run_steps(2)
