"""The number of reads and requests of a flow grows with its size, and no faster."""

from __future__ import annotations

import random

import pytest

from dibs.flow.running import evaluation
from tests.flow.driver import Driver, Graph

NODES = 2_000


@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "shuffled"])
async def test_a_fan_in_of_two_thousand_nodes_takes_few_reads(
    monkeypatch: pytest.MonkeyPatch,
    shuffled: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)
    graph = Graph([[]] * NODES + [list(range(NODES))], [[]] * (NODES + 1), [[]] * (NODES + 1))
    driver = Driver(rng=random.Random(1))
    async with driver.opened():
        await driver.enqueue(graph, shuffled=shuffled)
        assert "completed" == await driver.run()

    assert NODES + 1 == len(driver.ran)
    calls = driver.storage.calls
    # Each node is read before its enqueue and as a result once, and each of the 2,000 evaluations reads about
    # one watched node.
    assert driver.storage.ids_read < 5 * NODES
    assert calls["get"] < 2 * NODES
    assert calls["enqueue"] == 3
    assert calls["report"] <= 3 + NODES // evaluation.UNSAVED_ENDS
    assert calls["settle"] == 1
