"""Bugs of aborted evaluations, as short stories: the machine found them, or finds them too seldom."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.registry import open_storage
from tests.flow.machine.ending import check_end
from tests.flow.machine.graphs import QUEUES, FlowSpec, NodeSpec
from tests.flow.machine.process import Fault
from tests.flow.machine.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World.open(lambda: open_storage(f"memory:{os.urandom(8).hex()}", clock="manual"))
    yield world
    await world.close()


async def test_a_cancelled_flow_cancels_nodes_of_an_aborted_evaluation(world: World) -> None:
    """The evaluation enqueued the node and could not store the notes, which call the node waiting."""
    await world.enqueue("flow", FlowSpec((NodeSpec(),)))
    await world.run_handler(FLOWS)
    await world.run_handler(EVALUATIONS, 0, Fault("fail before", 0, "report"))
    await world.cancel_flow("flow", plainly=False)
    await world.drain()
    await check_end(world)

    assert ["cancelled"] == world.ledger.kinds("flow")
    assert ["cancelled"] == world.ledger.kinds("flow.0")


@pytest.mark.parametrize("gap", ["a move", "two hours"])
async def test_a_cancelled_node_of_an_aborted_evaluation_never_runs(world: World, gap: str) -> None:
    """The next evaluation finds no request key: a move does not carry keys, and each key expires."""
    await world.enqueue("flow", FlowSpec((NodeSpec(),)))
    await world.run_handler(FLOWS)
    await world.run_handler(EVALUATIONS, 0, Fault("fail before", 0, "report"))
    if gap == "a move":
        await world.move()
    await world.cancel_node("flow.0")
    if gap == "two hours":
        await world.advance(7200)
        await prune_keys(world)
    await world.drain()
    await check_end(world)

    assert ["cancelled"] == world.ledger.kinds("flow.0")


async def test_a_cancelled_shared_node_of_an_aborted_evaluation_never_runs(world: World) -> None:
    """The request key marks the repeat: another flow may enqueue the same id."""
    await world.enqueue("flow", FlowSpec((NodeSpec(shared=0),)))
    await world.run_handler(FLOWS)
    await world.run_handler(EVALUATIONS, 0, Fault("fail before", 0, "report"))
    await world.cancel_node("shared0")
    await world.drain()
    await check_end(world)

    assert ["cancelled"] == world.ledger.kinds("shared0")


async def test_a_process_forgets_the_state_of_an_aborted_evaluation(world: World) -> None:
    """The state in memory calls the second node taken, although its enqueue failed."""
    await world.enqueue("flow", FlowSpec((NodeSpec(), NodeSpec(after=(0,)))))
    await world.run_handler(FLOWS)
    await world.run_handler(EVALUATIONS)
    await world.work(QUEUES[0])
    await world.run_handler(EVALUATIONS, 0, Fault("fail before", 0, "enqueue"))
    await world.advance(2)  # the pause before the retry
    await world.run_handler(EVALUATIONS)
    await world.work(QUEUES[0])

    assert ["completed"] == world.ledger.kinds("flow.1")


async def prune_keys(world: World) -> None:
    """Remove the request keys that have expired."""
    for queue in QUEUES:
        while (await world.recorder.clock.silent_storage.prune(queue, 100)).more:
            pass
