"""Tests that cancel a call at each of its awaits, and then use the same storage object again.

A cancelled call must take effect completely or not at all, and no later call may get its reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from attrs import frozen

from dibs_conformance.concurrent.client import make_call
from dibs_conformance.crashes.scenes import SCENES, FaultCampaign, ThreadSurvivor, thread_survivor
from dibs_conformance.report import Findings, LawFailure
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs import VERBS
from dibs_conformance.verbs.actions import ClientCall, Program

T = TypeVar("T")
#: Limit on the awaits tried per scene. No operation has so many.
MAX_AWAITS = 200
#: Concurrent reads after a cancellation. Each must get its own answer.
READERS = 8


class AwaitCanceller:
    """Counts the awaits of a coroutine, and cancels the current task at one of them."""

    def __init__(self, at: int) -> None:
        self.count, self._at = 0, at

    @coroutine
    def run(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run the coroutine and forward everything it awaits."""
        error_in: BaseException | None = None
        while True:
            try:
                awaited = work.send(None) if error_in is None else work.throw(error_in)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            error_in = None
            self.count += 1
            if self.count == self._at:
                task = asyncio.current_task()
                assert task is not None  # noqa: S101 - this coroutine runs in a task
                task.cancel()
            try:
                yield awaited
            except BaseException as error:  # noqa: BLE001 - thrown into the coroutine again
                error_in = error


@frozen
class CancellationRunner:
    """The runner of scenes with a cancelled call.

    It cancels calls on the storage object that also makes the later calls. So both share its connections.
    """

    _survivor: ThreadSurvivor
    _campaign: FaultCampaign[str]

    def cancel_scene(self, name: str) -> None:
        """Cancel the operation of a scene at its first await, at its second, and so on until it completes."""
        for at in range(MAX_AWAITS):
            if self._campaign.failure is not None or not self._cancel_at(name, at):
                break

    def _cancel_at(self, name: str, at: int) -> bool:
        history = self._campaign.new_history()
        program = history.run_setup(SCENES[name])
        client = self._survivor.client
        call, was_cancelled = client.wait_for(client.submit(lambda: client.run(self._cancel(program, at))))
        if was_cancelled:
            self._campaign.count_fault()
        history.add([call])
        problem = client.wait_for(client.submit(lambda: client.run(self._check_readers(history.queue))))
        if problem:
            self._campaign.failure = LawFailure(
                law=self._campaign.law, why=f"{name}, cancelled at await {at}: {problem}"
            )
        history.finish()
        self._campaign.check(history)
        return was_cancelled

    async def _cancel(self, program: Program, at: int) -> tuple[ClientCall, bool]:
        """Make the call, cancel it at await number `at`, and return it with whether it was cancelled.

        With `at` 0 the call is cancelled before it starts.
        """
        [action] = program.actions
        now = program.now + action.clock_offset
        call = ClientCall(
            client="bob",
            operation=action.operation,
            queue=program.queue,
            args=VERBS[action.operation].arguments(action, program.queue, program.state),
            now=now,
            invoked=time.monotonic(),
        )
        task = asyncio.ensure_future(self._make_call(call, AwaitCanceller(at)))
        if at == 0:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return call, True
        call.returned = time.monotonic()
        return call, False

    async def _make_call(self, call: ClientCall, awaits: AwaitCanceller) -> None:
        await awaits.run(make_call(self._survivor.client.storage, call))

    async def _check_readers(self, queue: str) -> str:
        """Read with several tasks at the same time. Return a description of wrong answers, or ""."""
        storage, ids = self._survivor.client.storage, [f"reader {n}" for n in range(READERS)]
        answers = await asyncio.gather(*(storage.get(queue, [id] * (n + 1)) for n, id in enumerate(ids)))
        sizes = [len(answer) for answer in answers]
        return "" if sizes == list(range(1, READERS + 1)) else f"readers got {sizes} slots"


def try_cancellation(plan: LevelPlan, until: float) -> Findings:
    """Cancel each scene at each of its awaits."""
    location = plan.locations.new()
    with thread_survivor(plan.locations, location) as survivor:
        campaign: FaultCampaign[str] = FaultCampaign(
            "a cancelled caller leaves nothing half done",
            "A call cancelled at any await takes effect completely or not; no other call gets its reply.",
            "cancel",
            survivor,
            "cancelled",
            plan.seed,
        )
        campaign.run(list(SCENES), CancellationRunner(survivor, campaign).cancel_scene, until)
        return campaign.findings()
