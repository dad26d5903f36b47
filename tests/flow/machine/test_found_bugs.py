"""Bugs that the machine has found, as short stories."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from dibs.flow.wakeup import EVALUATIONS, FLOWS
from dibs.storage.registry import open_storage
from tests.flow.machine.ending import check_end
from tests.flow.machine.graphs import FlowSpec, NodeSpec
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
