"""The state machine: Hypothesis chooses what happens to the flows, and the laws judge the end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from dibs.flow.running import evaluation
from dibs.model.wakeup import EVALUATIONS, FLOWS
from tests.flow.machine.ending import check_end
from tests.flow.machine.graphs import QUEUES, FlowSpec, flow_specs
from tests.flow.machine.process import FAULT_KINDS, Fault
from tests.flow.machine.world import NewStorage, World

T = TypeVar("T")
MOST_FLOWS = 3

faults = st.builds(Fault, st.sampled_from(FAULT_KINDS), st.integers(0, 7)) | st.builds(
    Fault, st.sampled_from(FAULT_KINDS), st.just(0), st.sampled_from(("enqueue", "report", "finish"))
)
some_index = st.integers(0, 30)


class FlowMachine(RuleBasedStateMachine):
    """Flows under faults. Each example ends with a drain and the comparison with the naive reading."""

    def __init__(self, new_storage: NewStorage) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._runner = asyncio.Runner()
        self.world = self._run(World.open(new_storage))
        clock = SimpleNamespace(monotonic=lambda: self.world.recorder.clock.now_ms / 1000, time=time.time)
        # Evaluations then depend on the manual clock alone, and never sleep.
        self._patch.setattr(evaluation, "time", clock)
        self._patch.setattr(evaluation, "_HAND_OFF_PAUSES", ())
        self._is_broken = False
        self.is_calm = False
        logging.disable(logging.ERROR)

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._runner.run(coroutine)
        except BaseException:
            self._is_broken = True
            raise

    @initialize(luck=st.integers(0, 2), spec=flow_specs(), fault=faults)
    def begin(self, luck: int, spec: FlowSpec, fault: Fault) -> None:
        """Enqueue a flow. Leave all faults out of some examples: their flows must need no timer."""
        self.is_calm = luck == 0
        self._run(self.world.enqueue("flow0", spec))
        if luck == 1:
            self.go_on_once()
        elif luck == 2:
            self.go_on_with_a_fault(1, fault)

    # -- flows and runs --------------------------------------------------------------------------------

    @precondition(lambda self: len(self.top_flows()) < MOST_FLOWS)
    @rule(spec=flow_specs())
    def enqueue(self, spec: FlowSpec) -> None:
        self._run(self.world.enqueue(f"flow{len(self.top_flows())}", spec))

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.go_on_once()
            for queue in QUEUES:
                self._run(self.world.work(queue))

    @rule()
    def sweep(self) -> None:
        self._run(self.world.sweep())

    @rule(process=st.integers(0, 1))
    def evaluate(self, process: int) -> None:
        self._run(self.world.run_handler(EVALUATIONS, process))

    @precondition(lambda self: not self.is_calm)
    @rule(process=st.integers(0, 1), fault=faults)
    def evaluate_with_a_fault(self, process: int, fault: Fault) -> None:
        self.go_on_with_a_fault(process, fault)

    @precondition(lambda self: not self.is_calm)
    @rule(fault=faults)
    def start_with_a_fault(self, fault: Fault) -> None:
        self.world.is_disturbed = True
        self._run(self.world.run_handler(FLOWS, 0, fault))

    @rule(queue=st.sampled_from(QUEUES), dies=st.booleans())
    def work(self, queue: str, dies: bool) -> None:  # noqa: FBT001 - a strategy passes it
        self._run(self.world.work(queue, dies=dies and not self.is_calm))

    @precondition(lambda self: self.world.paused)
    @rule()
    def resume(self) -> None:
        self._run(self.world.resume(0))

    @precondition(lambda self: self.world.handed_off)
    @rule()
    def finish(self) -> None:
        self._run(self.world.finish_one())

    # -- operators and time ----------------------------------------------------------------------------

    @precondition(lambda self: not self.is_calm and self.live(self.top_flows()))
    @rule(number=some_index, plainly=st.booleans())
    def cancel_flow(self, number: int, plainly: bool) -> None:  # noqa: FBT001 - a strategy passes it
        self._run(self.world.cancel_flow(self.choose(self.live(self.top_flows()), number), plainly=plainly))

    @precondition(lambda self: not self.is_calm and self.live(self.world.nodes))
    @rule(number=some_index)
    def cancel_node(self, number: int) -> None:
        self._run(self.world.cancel_node(self.choose(self.live(self.world.nodes), number)))

    @precondition(lambda self: not self.is_calm and self.failed(self.world.nodes))
    @rule(number=some_index)
    def retry_node(self, number: int) -> None:
        self._run(self.world.retry_node(self.choose(self.failed(self.world.nodes), number)))

    @precondition(lambda self: not self.is_calm and self.live(self.top_flows()))
    @rule(number=some_index)
    def cancel_evaluation(self, number: int) -> None:
        self._run(self.world.cancel_evaluation(self.choose(self.live(self.top_flows()), number)))

    @precondition(lambda self: self.failed(self.top_flows()))
    @rule(number=some_index)
    def retry_flow(self, number: int) -> None:
        self._run(self.world.retry_flow(self.choose(self.failed(self.top_flows()), number)))

    @rule(seconds=st.sampled_from((0.3, 2, 31, 61)))
    def advance(self, seconds: float) -> None:
        self._run(self.world.advance(seconds))

    @precondition(lambda self: not self.is_calm)
    @rule(drops=st.booleans())
    def drop_wake_ups(self, drops: bool) -> None:  # noqa: FBT001 - a strategy passes it
        self.world.is_disturbed = True
        self.world.recorder.drops_wake_ups = drops

    @precondition(lambda self: not self.is_calm)
    @rule()
    def move(self) -> None:
        self._run(self.world.move())

    # -- the end ---------------------------------------------------------------------------------------

    def teardown(self) -> None:
        try:
            if not self._is_broken:
                self._run(self.end())
        finally:
            self._runner.run(self.world.close())
            self._runner.close()
            self._patch.undo()
            logging.disable(logging.NOTSET)

    async def end(self) -> None:
        """Check the ends of all flows, then retry those that failed, and check them again."""
        await self.world.drain()
        await check_end(self.world)
        if failed := self.failed(self.top_flows()):
            for flow in failed:
                await self.world.retry_flow(flow)
            await self.world.drain()
            await check_end(self.world)

    def top_flows(self) -> list[str]:
        return [label for label in self.world.specs if "." not in label]

    def go_on_once(self) -> None:
        """Start a flow and evaluate one, so that nodes wait."""
        self._run(self.world.run_handler(FLOWS))
        self._run(self.world.run_handler(EVALUATIONS, 1))

    def go_on_with_a_fault(self, process: int, fault: Fault) -> None:
        self.world.is_disturbed = True
        self._run(self.world.run_handler(FLOWS))
        self._run(self.world.run_handler(EVALUATIONS, process, fault))

    def live(self, labels: Iterable[str]) -> list[str]:
        return [label for label in labels if self.world.ledger.is_live(label)]

    def failed(self, labels: Iterable[str]) -> list[str]:
        return [label for label in labels if self.world.ledger.kinds(label)[-1:] == ["failed"]]

    @staticmethod
    def choose(items: list[str], number: int) -> str:
        return items[number % len(items)]


def run_machine(new_storage: NewStorage, examples: settings) -> None:
    """Run examples of the machine. Raises BrokenLaw."""
    make: Any = lambda: FlowMachine(new_storage)  # noqa: E731 - Hypothesis calls it as a class
    run_state_machine_as_test(make, settings=examples)
