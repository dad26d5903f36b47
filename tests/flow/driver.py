"""Runs flows step by step, without a worker: a test chooses the next job, and where an evaluation stops."""

from __future__ import annotations

import asyncio
import inspect
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any, Final, Literal, Self, cast

import msgspec
from attrs import define, field, frozen

from dibs import Dibs, Error, Snooze, Storage, open_storage
from dibs.flow.running.evaluation import Evaluator
from dibs.model.job import Job
from dibs.model.requests import Complete, Fail, HandOff, Release, SettleAction, Settlement
from dibs.model.wakeup import EVALUATIONS, FLOWS, Hint, wake_up_request, with_wake_up

#: The verbs of a storage that an evaluation calls.
CALLS = ("get", "enqueue", "report", "settle", "finish", "amend", "cancel", "retry_failed")
Stop = Literal["before", "after", "freeze"]
#: A delay in ms that is longer than any test.
NEVER: Final = 10**9
#: A number of steps that no flow of the tests needs. A flow that takes more hangs.
MAX_STEPS = 20_000


class Crashed(Exception):
    """The process of an evaluation has died."""


class StoppingStorage:
    """A storage that stops the evaluation at its n-th call: before it, after it, or until `thaw`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.capabilities = storage.capabilities
        self.calls: Counter[str] = Counter()
        #: The number of ids that evaluations read.
        self.ids_read = 0
        #: The number of the call that stops, from 1; 0 for none.
        self.stop_at = 0
        self.stop: Stop = "before"
        #: The error with which the call stops.
        self.error: BaseException = Crashed()
        self.is_evaluating = False
        self.frozen = asyncio.Event()
        self.thawed = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._storage.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._storage.__aexit__(None, None, None)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)
        if name not in CALLS or not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            if not self.is_evaluating:
                return await real(*args, **kwargs)
            self.calls[name] += 1
            self.ids_read += len(args[1]) if name == "get" else 0
            if self.calls.total() != self.stop_at:
                return await real(*args, **kwargs)
            if self.stop == "before":
                raise self.error
            if self.stop == "freeze":
                self.frozen.set()
                await self.thawed.wait()
            result = await real(*args, **kwargs)
            if self.stop == "after":
                raise self.error
            return result

        return call


@frozen
class SharedStorage:
    """The open storage of a test, for the apps of several processes."""

    _storage: StoppingStorage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the storage open."""


@frozen
class Graph:
    """A flow to run: for each node its parents by kind, and the nodes that fail."""

    arguments: list[list[int]]
    after: list[list[int]]
    ignored: list[list[int]]
    failing: frozenset[int] = frozenset()

    @classmethod
    def draw(cls, rng: random.Random, size: int) -> Self:
        """Return a random graph."""
        kinds: list[list[list[int]]] = [[], [], []]
        for number in range(size):
            parents = [one for one in range(number) if rng.random() < 0.3]
            chosen = [rng.randrange(3) for _ in parents]
            for kind, lists in enumerate(kinds):
                lists.append([one for one, its in zip(parents, chosen, strict=True) if its == kind])
            if kinds[1][-1]:  # `after` has one rule for all its nodes
                kinds[2][-1] = []
        failing = frozenset(number for number in range(size) if rng.random() < 0.2)
        return cls(kinds[0], kinds[1], kinds[2], failing)

    def expected(self) -> list[str]:
        """Return the state in which each node ends, by a plain replay in the order of the nodes."""
        states: list[str] = []
        for number, parents in enumerate(zip(self.arguments, self.after, strict=True)):
            runs = all(states[one] == "completed" for one in (*parents[0], *parents[1]))
            states.append("skipped" if not runs else "failed" if number in self.failing else "completed")
        return states

    def fails(self) -> bool:
        """Return whether the flow fails: a failed node is not followed by nodes that all ignore it."""
        required = {one for lists in (self.arguments, self.after) for parents in lists for one in parents}
        ignored = {one for parents in self.ignored for one in parents}
        return any(
            state == "failed" and (number in required or number not in ignored)
            for number, state in enumerate(self.expected())
        )


async def join(parts: list[int]) -> int:
    raise NotImplementedError


@define
class Driver:
    """One app on a storage in memory, and the jobs that ran."""

    rng: random.Random = field(factory=lambda: random.Random(0))
    #: False: no end of a node wakes its flow, and each evaluation comes by its timer.
    wakes: bool = True
    #: False: the timer of an evaluation never fires, so a lost wake-up stops the flow.
    timers: bool = True
    evaluators: int = 1
    app: Dibs = field(init=False)
    task: Any = field(init=False)
    storage: StoppingStorage = field(init=False)
    ran: list[int] = field(factory=list, init=False)
    failing: set[int] = field(factory=set, init=False)
    _evaluators: list[Evaluator] = field(factory=list, init=False)
    _frozen: asyncio.Task[None] | None = field(default=None, init=False)
    _lease: str = field(default="", init=False)
    #: The storages of the evaluators.
    _stack: ExitStack = field(factory=ExitStack, init=False)

    def __attrs_post_init__(self) -> None:
        self.app = Dibs("memory:", flows=True)
        self.task = self.app.task(queue="join")(join)
        self.storage = StoppingStorage(open_storage("memory:"))
        self._evaluators = [self._new_evaluator() for _ in range(self.evaluators)]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        """Open the storage for a block, in which the app uses it."""
        async with self.storage:
            with self.app.override_storage(self.storage):
                yield self

    def _new_evaluator(self) -> Evaluator:
        """Return an evaluator with an app of its own, as another process would have."""
        app = Dibs("memory:", flows=True)
        app.task(queue="join")(join)
        self._stack.enter_context(app.override_storage(cast("Storage", SharedStorage(self.storage))))
        return Evaluator(app._require_flows())

    async def enqueue(self, graph: Graph, id: str = "f", *, shuffled: bool = False) -> None:
        """Enqueue a flow of this graph. The result of a node is its number.

        `shuffled` gives the nodes priorities, so that they run in another order.
        """
        self.failing = set(graph.failing)
        flow = self.app.flow(id=id)
        nodes: list[Any] = []
        for number, arguments in enumerate(graph.arguments):
            options = self.task.options(
                attributes={"number": number}, priority=self.rng.randrange(1000) if shuffled else 0
            )
            call = options.bind([nodes[one].output for one in arguments])
            parents = [nodes[one] for one in graph.after[number] or graph.ignored[number]]
            nodes.append(
                flow.add(call, after=parents, on_failure="stop" if graph.after[number] else "ignore")
            )
        await flow.enqueue()

    async def run(self, id: str = "f", most: int = MAX_STEPS) -> str:
        """Run all jobs until the flow has ended and no job waits; return the state of the flow.

        Fail after `most` steps.
        """
        self._lease = (await self.storage.grant([FLOWS, EVALUATIONS, "join"], 10**9, "driver")).lease
        for _ in range(most):
            if not await self._step() and await self._has_ended(id):
                status = await self.app.queue(FLOWS).get(id)
                assert status is not None
                return status.state
        raise AssertionError(f"the flow did not end in {most} steps")

    async def run_steps(self, count: int) -> None:
        """Run `count` jobs, or fewer if no more are due."""
        self._lease = (await self.storage.grant([FLOWS, EVALUATIONS, "join"], 10**9, "driver")).lease
        for _ in range(count):
            await self._step()

    async def _step(self) -> bool:
        """Run one job. Return False if only evaluations are left, or none."""
        if self._frozen is not None and self.rng.random() < 0.2:
            await self._thaw()
        queues = [FLOWS, EVALUATIONS, "join"]
        self.rng.shuffle(queues)
        for queue in queues:
            for job in (await self.storage.claim(queue, self._lease, 1)).jobs:
                await self._run(queue, job)
                return queue != EVALUATIONS
        if self._frozen is not None:
            await self._thaw()
        return False

    async def _has_ended(self, id: str) -> bool:
        (slot,) = await self.storage.get(FLOWS, [id])
        waiting = (await self.storage.counts(["join", EVALUATIONS])).values()
        return slot.current is None and not any(one.waiting for one in waiting) and self._frozen is None

    async def _run(self, queue: str, job: Job) -> None:
        action: SettleAction = HandOff()
        if queue == FLOWS:
            await self.storage.enqueue(EVALUATIONS, [wake_up_request(job.id, Hint(token=str(job.revision)))])
        elif queue == EVALUATIONS:
            action = await self._evaluate(job)
        else:
            action = self._run_node(job)
        assert job.run is not None
        await self.storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=action)])

    def _run_node(self, job: Job) -> SettleAction:
        number = msgspec.json.decode(job.data.attributes["number"])
        self.ran.append(number)
        action: SettleAction = Complete(result=str(number).encode())
        if number in self.failing:
            action = Fail(error=Error(type="Planned"))
        return with_wake_up(action, job.id, job.data.attributes) if self.wakes else action

    async def _evaluate(self, job: Job) -> SettleAction:
        which = self.rng.randrange(len(self._evaluators))
        task = asyncio.create_task(self._evaluators[which].evaluate(job.id, job.data.payload))
        is_frozen = asyncio.create_task(self.storage.frozen.wait())
        self.storage.is_evaluating = True
        await asyncio.wait([task, is_frozen], return_when=asyncio.FIRST_COMPLETED)
        self.storage.is_evaluating = False
        is_frozen.cancel()
        if not task.done():  # another process takes over while this one stands still
            self.storage.frozen.clear()
            self._frozen, self._evaluators[which] = task, self._new_evaluator()
            return Release()
        try:
            task.result()
        except Snooze:
            return Release(delay=0 if self.timers else NEVER)
        except Crashed:
            self._evaluators[which] = self._new_evaluator()
            return Release(delay=0)
        return Complete()

    async def _thaw(self) -> None:
        """Continue the frozen evaluation, and wait for its end."""
        assert self._frozen is not None
        self.storage.thawed.set()
        await asyncio.wait([self._frozen])
        if not isinstance(error := self._frozen.exception(), Snooze | None):
            raise error
        self._frozen = None


async def stopped_at_each_call(stop: Stop, least: int = 0) -> AsyncIterator[Driver]:
    """Yield open drivers whose evaluations stop at their first call, at their second call, and so on.

    The evaluations of the last driver make too few calls to stop. There are more than `least` others.
    """
    stops = 0
    while True:
        driver = Driver(rng=random.Random(stops))
        driver.storage.stop_at, driver.storage.stop = stops + 1, stop
        async with driver.opened():
            yield driver
        if driver.storage.calls.total() <= stops:
            break
        stops += 1
    assert stops > least
