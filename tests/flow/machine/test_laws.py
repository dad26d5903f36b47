"""Stories that keep all laws, and break exactly one of them with a planted bug."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from types import ModuleType
from typing import Final

import pytest
from attrs import frozen

from dibs.flow import arguments
from dibs.flow.running import decide, ending, evaluation, live_flow, node_calls
from dibs.maintenance import flow_repair
from dibs.model import wakeup
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.storage.registry import open_storage
from tests.flow.machine.ending import check_end
from tests.flow.machine.graphs import QUEUES, FlowSpec, NodeSpec
from tests.flow.machine.laws import BrokenLaw
from tests.flow.machine.planting import plant
from tests.flow.machine.world import World

FAILS: Final = ("fail",)
FAILS_ONCE: Final = ("fail", "complete")
HANDS_OFF: Final = ("hand off",)
FLOW: Final = "flow"

Story = Callable[[World], Awaitable[None]]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = await World.open(lambda: open_storage(f"memory:{os.urandom(8).hex()}", clock="manual"))
    yield world
    await world.close()


async def start(world: World, *nodes: NodeSpec, returns: int | None = None) -> None:
    """Enqueue a flow and start it, so that its first nodes wait."""
    await world.enqueue(FLOW, FlowSpec(nodes, returns))
    await world.run_handler(FLOWS)
    await world.run_handler(EVALUATIONS)


async def end(world: World) -> None:
    await world.drain()
    await check_end(world)


def undisturbed(*nodes: NodeSpec, returns: int | None = None) -> Story:
    """Return the story of a flow to which nothing happens."""

    async def story(world: World) -> None:
        await start(world, *nodes, returns=returns)
        await end(world)

    return story


def in_two_processes(*nodes: NodeSpec) -> Story:
    """Return the story of a flow that a second process evaluates while its first node is open."""

    async def story(world: World) -> None:
        await start(world, *nodes)
        await world.advance(2)
        with pytest.MonkeyPatch.context() as patch:
            for name in ("FULL_READ", "SAVE_EVERY"):  # they count real seconds
                patch.setattr(evaluation, name, 0.0)
            await world.run_handler(EVALUATIONS, 0)  # stores the notes
        await world.advance(61)
        await world.run_handler(EVALUATIONS, 1)
        await end(world)

    return story


def retried(*nodes: NodeSpec) -> Story:
    """Return the story of a flow that fails and is retried."""

    async def story(world: World) -> None:
        await start(world, *nodes)
        await end(world)
        await world.retry_flow(FLOW)
        await end(world)

    return story


def cancelled(*, plainly: bool) -> Story:
    """Return the story of a flow that is cancelled while its node waits, by its method or as a job."""

    async def story(world: World) -> None:
        await start(world, NodeSpec())
        await world.cancel_flow(FLOW, plainly=plainly)
        await end(world)

    return story


async def cancel_node(world: World) -> None:
    await start(world, NodeSpec())
    await world.cancel_node(f"{FLOW}.0")
    await world.advance(2)
    await world.run_handler(EVALUATIONS, 0)
    await end(world)


async def cancel_node_and_retry(world: World) -> None:
    await cancel_node(world)
    await world.retry_flow(FLOW)
    await end(world)


async def lose_last_wake_up(world: World) -> None:
    """The last node ends without a wake-up, and an operator cancels the evaluation."""
    await start(world, NodeSpec())
    world.recorder.drops_wake_ups = True
    await world.work(QUEUES[0])
    await world.cancel_evaluation(FLOW)
    await end(world)


@frozen
class Bug:
    """A story, a text edit of a module, and the law that the story breaks with this edit."""

    name: str
    story: Story
    law: str
    module: ModuleType
    old: str
    new: str


OPEN_PARENT: Final = (
    decide,
    "while index >= 0 and is_ended(self.notes[parents[index]]):",
    "while index >= 0 and self.notes[parents[index]] != WAITING:",
)
BUGS: Final = (
    Bug(
        "an open parent counts as ended",
        in_two_processes(NodeSpec(fates=HANDS_OFF), NodeSpec(after=(0,))),
        "a node runs after its parents",
        *OPEN_PARENT,
    ),
    Bug(
        "an open ignored parent counts as ended",
        in_two_processes(NodeSpec(fates=HANDS_OFF), NodeSpec(after=(0,), ignore=True)),
        "a node runs after its ignored parents",
        *OPEN_PARENT,
    ),
    Bug(
        "only direct dependents are skipped",
        undisturbed(NodeSpec(fates=FAILS), NodeSpec(after=(0,)), NodeSpec(after=(1,))),
        "a node runs after its parents",
        decide,
        "ends += [(one, SKIPPED) for one in self._dependents[number]]",
        "ends += [(one, SKIPPED) for one in self._dependents[number] if note != SKIPPED]",
    ),
    Bug(
        "one ignored edge excuses a node that others require",
        undisturbed(NodeSpec(fates=FAILS), NodeSpec(after=(0,)), NodeSpec(after=(0,), ignore=True)),
        "a flow ends as its nodes say",
        decide,
        "return number in self._tolerated and not self._dependents[number]",
        "return number in self._tolerated",
    ),
    Bug(
        "a flow completes without the node that it returns",
        undisturbed(NodeSpec(fates=FAILS), NodeSpec(after=(0,), ignore=True), returns=0),
        "a failed flow counts its nodes",
        decide,
        "and (number == self.plan.returns or not self._is_tolerated(number))",
        "and not self._is_tolerated(number)",
    ),
    Bug(
        "an evaluation reads no watched node",
        undisturbed(NodeSpec(), NodeSpec(after=(0,))),
        "a flow without faults needs no timer",
        decide,
        "return list(dict.fromkeys((*self._watched_open, *self.next_reads())))",
        "return []",
    ),
    Bug(
        "a failed node wakes no flow",
        undisturbed(NodeSpec(fates=FAILS), NodeSpec(after=(0,), ignore=True)),
        "a flow without faults needs no timer",
        wakeup,
        "if not isinstance(action, Complete | Fail) or",
        "if not isinstance(action, Complete) or",
    ),
    Bug(
        "a repeated enqueue counts as a new one",
        undisturbed(NodeSpec(), NodeSpec(after=(0,)), NodeSpec(after=(1,)), NodeSpec(after=(2,))),
        "a flow without faults needs no timer",
        node_calls,
        "    if known:\n",
        "    if not known:\n",
    ),
    Bug(
        "a wake-up never makes an evaluation earlier",
        undisturbed(NodeSpec(), NodeSpec(after=(0,))),
        "a flow without faults needs no timer",
        wakeup,
        'WAKE: Final = Update(data=False, run_at="earlier")',
        'WAKE: Final = Update(data=False, run_at="later")',
    ),
    Bug(
        "results arrive in another order",
        undisturbed(NodeSpec(), NodeSpec(), NodeSpec(arguments=(1, 0))),
        "results arrive in place",
        arguments,
        "return list(map(value_of, argument.nodes))",
        "return list(map(value_of, sorted(argument.nodes)))",
    ),
    Bug(
        "a cancelled node counts as completed",
        cancel_node,
        "nodes end as the naive reading",
        node_calls,
        '"cancelled": CANCELLED,',
        '"cancelled": COMPLETED,',
    ),
    Bug(
        "a failed flow ends without its notes",
        retried(NodeSpec(), NodeSpec(fates=FAILS_ONCE, after=(0,))),
        "a completed node never runs again",
        ending,
        "if isinstance(end, Fail) and flow.state.unsaved:",
        "if isinstance(end, Fail) and flow.state.unsaved and flow.memo is not None:",
    ),
    Bug(
        "a retry leaves skipped nodes as they are",
        retried(NodeSpec(fates=FAILS_ONCE), NodeSpec(after=(0,))),
        "nodes end as the naive reading",
        ending,
        "reset = [note if is_completed(note) or is_open(note) else WAITING for note in notes]",
        "reset = [note if is_completed(note) or is_open(note) or note == 5 else WAITING for note in notes]",
    ),
    Bug(
        "a retry has the request keys of the first run",
        cancel_node_and_retry,
        "a retry runs failed nodes again",
        live_flow,
        "{self.revision}/",
        "",
    ),
    Bug(
        "a cancelled flow leaves its nodes",
        cancelled(plainly=False),
        "no node runs after its flow",
        ending,
        "found = await _cancel_nodes(storage, flow.plan, flow.id, flow.stamp, open_nodes)",
        "found = {}",
    ),
    Bug(
        "a flow that was cancelled as a job leaves its nodes",
        cancelled(plainly=True),
        "no node runs after its flow",
        ending,
        "    await _cancel_nodes(storage, plan, id, _stamp(outcome, data), range(len(plan.nodes)))\n",
        "",
    ),
    Bug(
        "the maintenance finds no missing evaluation",
        lose_last_wake_up,
        "each flow ends",
        flow_repair,
        "if slot.current is None]",
        "if slot.current is not None]",
    ),
)
BY_NAME: Final = pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)


@BY_NAME
async def test_a_story_keeps_all_laws(bug: Bug, world: World) -> None:
    await bug.story(world)


@BY_NAME
async def test_a_planted_bug_breaks_its_law(bug: Bug, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, bug.module, bug.old, bug.new)

    with pytest.raises(BrokenLaw, match=f"^{re.escape(bug.law)}:"):
        await bug.story(world)
