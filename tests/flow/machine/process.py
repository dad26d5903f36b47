"""A worker process of the machine: an app of its own, whose calls to the storage may fail or pause."""

from __future__ import annotations

import asyncio
import inspect
from contextlib import ExitStack
from contextvars import copy_context
from typing import Any, Literal, Self

from attrs import define, field, frozen

from dibs import Dibs
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.flow.builder import Flow
from dibs.model.job import Job
from dibs.model.requests import SettleAction, Settlement
from dibs.model.run_outcome import Verdict
from dibs.testing.clock import TIMED_METHODS
from dibs.worker.execution.invocation import Invocation, call_async_handler
from dibs.worker.execution.outcome import RunOutcomes
from tests.flow.machine.graphs import QUEUES, FlowSpec, label_of
from tests.flow.machine.ledger import Recorder

FaultKind = Literal["fail before", "fail after", "die before", "die after", "pause"]
FAULT_KINDS: tuple[FaultKind, ...] = ("fail before", "fail after", "die before", "die after", "pause")


class Died(Exception):
    """The process was killed; none of its calls reaches the storage any more."""


@frozen
class Fault:
    """A fault at the call number `at` (from 0) of one run, among all calls or those of one verb."""

    kind: FaultKind
    at: int
    verb: str = ""


@define(eq=False)
class FaultyStorage:
    """The storage of one process. One planned fault hits one of its next calls."""

    _recorder: Recorder
    fault: Fault | None = None
    _calls: int = 0
    is_dead: bool = False
    paused: asyncio.Event = field(factory=asyncio.Event)
    resumed: asyncio.Event = field(factory=asyncio.Event)

    def plan(self, fault: Fault | None) -> None:
        self.fault, self._calls = fault, 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        """Leave the storage open: several apps share it."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._recorder, name)
        if name not in TIMED_METHODS or not inspect.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            when = await self._before(name)
            # Looked up again: a pause may outlast a move.
            result = await getattr(self._recorder, name)(*args, **kwargs)
            self._after(when)
            return result

        return call

    async def _before(self, verb: str) -> str:
        fault = self.fault
        if self.is_dead:
            raise Died
        if fault is None or fault.verb not in ("", verb):
            return ""
        self._calls += 1
        if self._calls - 1 != fault.at:
            return ""
        self.fault = None
        if fault.kind == "pause":
            self.paused.set()
            await self.resumed.wait()
            self.paused.clear()
            self.resumed.clear()
        elif fault.kind == "die before":
            self.is_dead = True
            raise Died
        elif fault.kind == "fail before":
            raise StorageUnavailable("planned: the call was not sent")
        return fault.kind

    def _after(self, when: str) -> None:
        if when == "die after":
            self.is_dead = True
            raise Died
        if when == "fail after":
            raise OutcomeUnknown("planned: the reply was lost")


async def step(label: str, inputs: list[Any]) -> list[Any]:
    """The task of every node. The machine decides how a run ends, so it is never called."""
    raise AssertionError(label)


class Process:
    """An app with flows on the storage of the machine."""

    def __init__(self, recorder: Recorder) -> None:
        self.storage = FaultyStorage(recorder)
        self._recorder = recorder
        self._stack = ExitStack()
        self.app = Dibs("memory:", flows=True)
        self._stack.enter_context(self.app.override_storage(self.storage))
        self.tasks = [self.app.task(queue=queue, max_retries=None)(step) for queue in QUEUES]

    def build(self, label: str, spec: FlowSpec, id: str | None = None) -> Flow:
        """Return a flow of this app. Each job has its label as an attribute."""
        flow = self.app.flow(id, attributes={"label": label})
        nodes: list[Any] = []
        for number, one in enumerate(spec.nodes):
            name = label_of(label, number, one)
            settings: dict[str, Any] = {"attributes": {"label": name}}
            if one.shared is not None:
                settings["id"] = name
            queue = one.queue if one.shared is None else 0
            job: Any = (
                self.build(name, one.nested)
                if one.nested is not None
                else self.tasks[queue].options(**settings).bind(name, [nodes[n] for n in one.arguments])
            )
            after = [nodes[n] for n in one.after]
            nodes.append(flow.add(job, after=after, on_failure="ignore" if one.ignore else "stop"))
        if spec.returns is not None:
            flow.returns(nodes[spec.returns])
        return flow

    async def run(self, queue: str, job: Job, fault: Fault | None) -> asyncio.Task[Verdict] | None:
        """Run the handler of a claimed flow or evaluation. Return its task if the process pauses in it."""
        loop = asyncio.get_running_loop()
        invocation = Invocation(self.app.handlers[queue], job, 0)
        invocation.current = CurrentJob(RunEnvironment(self.storage, queue, loop), job, None)
        self.storage.plan(fault)
        task = loop.create_task(self._run(invocation), context=copy_context())
        pause = loop.create_task(self.storage.paused.wait())
        await asyncio.wait((task, pause), return_when=asyncio.FIRST_COMPLETED)
        pause.cancel()
        self.storage.plan(None)
        if not task.done():
            return task
        task.result()
        return None

    async def _run(self, invocation: Invocation) -> Verdict:
        verdict = await call_async_handler(invocation)
        if not self.storage.is_dead:
            await self.settle(invocation.handler.queue, invocation.job, verdict)
        return verdict

    async def settle(self, queue: str, job: Job, verdict: Verdict) -> None:
        """Settle a run as a worker does."""
        chosen: list[SettleAction] = []
        outcomes = RunOutcomes(lambda _, action: chosen.append(action), [0.0])
        outcomes.settle_by_verdict(Invocation(self.app.handlers[queue], job, 0), verdict)
        assert job.run is not None
        settlement = Settlement(id=job.id, fence=job.run.fence, action=chosen[0])
        (answer,) = await self._recorder.settle(queue, [settlement])
        assert answer.status != "refused", answer

    def close(self) -> None:
        self._stack.close()
