"""Wake-ups alone run a flow to its end on several processes; the timers of evaluations never fire."""

from __future__ import annotations

import random

import pytest

from dibs.flow.running import evaluation
from tests.flow.driver import Driver, Graph

#: Steps of a test without timers: more than its nodes and evaluations take.
STEPS = 300


@pytest.fixture(autouse=True)
def only_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read watched nodes only: a full read would find each end, and the timers of the tests never fire."""
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)


async def run_without_timers(driver: Driver, graph: Graph, *, shuffled: bool = False) -> str:
    async with driver.opened():
        await driver.enqueue(graph, shuffled=shuffled)
        return await driver.run(most=STEPS)


@pytest.mark.parametrize("seed", range(20))
async def test_a_chain_needs_no_timer_on_two_processes(seed: int) -> None:
    """One process may repeat an enqueue that the other has made, for a node that has ended meanwhile."""
    length = 12
    graph = Graph([[], *([one] for one in range(length - 1))], [[]] * length, [[]] * length)
    driver = Driver(rng=random.Random(seed), timers=False, evaluators=2)

    assert "completed" == await run_without_timers(driver, graph)
    assert list(range(length)) == driver.ran


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("seed", range(20))
async def test_a_random_graph_needs_no_timer_on_three_processes(seed: int, shuffled: bool) -> None:  # noqa: FBT001
    rng = random.Random(seed)
    graph = Graph.draw(rng, 14)
    driver = Driver(rng=rng, timers=False, evaluators=3)

    assert ("failed" if graph.fails() else "completed") == await run_without_timers(
        driver, graph, shuffled=shuffled
    )
