"""A caller that is cancelled while it awaits, at every await of every verb, and who calls next."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

from dibs_conformance.concurrent.actions import Order, words
from dibs_conformance.concurrent.calls import Call
from dibs_conformance.concurrent.performer import make
from dibs_conformance.crashes.scenes import SCENES, Way
from dibs_conformance.crashes.survivor import Witness, witness
from dibs_conformance.report import Failure, Findings
from dibs_conformance.target import LevelPlan

T = TypeVar("T")
#: More awaits than any verb has.
MOST = 200
#: Readers that follow on the same storage: each has to get its own answer.
READERS = 8


class Awaits:
    """Counts where a coroutine awaits, and cancels its task at one of them."""

    def __init__(self, at: int) -> None:
        self.count, self._at = 0, at

    @coroutine
    def over(self, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Run the coroutine, handing through whatever it waits for."""
        failed: BaseException | None = None
        while True:
            try:
                waited = work.send(None) if failed is None else work.throw(failed)
            except StopIteration as stop:
                return stop.value  # type: ignore[no-any-return]
            failed = None
            self.count += 1
            if self.count == self._at:
                task = asyncio.current_task()
                assert task is not None  # noqa: S101 - it runs in one
                task.cancel()
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001 - it goes to whom it was thrown at
                failed = error


class Cancelling:
    """Cancels on the storage of the witness itself."""

    def __init__(self, seen: Witness, way: Way[str]) -> None:
        self._seen, self._way = seen, way

    def scene(self, name: str) -> None:
        """Cancel one verb at its first await, at its second, until there are no more."""
        for at in range(MOST):
            if self._way.failure is not None or not self._cancelled(name, at):
                break

    def _cancelled(self, name: str, at: int) -> bool:
        history = self._way.history()
        order = history.begin(SCENES[name])
        player = self._seen.player
        call, was = player.does(lambda: player.run(self._cancel(order, at))).result(60)
        if was:
            self._way.count()
        history.add([call])
        crossed = player.does(lambda: player.run(self._crossed(history.queue))).result(60)
        if crossed:
            self._way.failure = Failure(law=self._way.law, why=f"{name}, cancelled at await {at}: {crossed}")
        history.end()
        self._way.judge(history)
        return was

    async def _cancel(self, order: Order, at: int) -> tuple[Call, bool]:
        """Make the call and cancel it there; tell whether it came that far. 0: before it began."""
        [act] = order.acts
        now = order.now + act.late
        call = Call(
            client="bob",
            verb=act.verb,
            queue=order.queue,
            args=words(act, order.queue, order.hands, now),
            now=now,
            invoked=time.monotonic(),
        )
        task = asyncio.ensure_future(self._made(call, Awaits(at)))
        if at == 0:
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return call, True
        call.returned = time.monotonic()
        return call, False

    async def _made(self, call: Call, awaits: Awaits) -> None:
        await awaits.over(make(self._seen.player.storage, call))

    async def _crossed(self, queue: str) -> str:
        """Read many ids at once; what is wrong with the answers."""
        storage, ids = self._seen.player.storage, [f"reader {n}" for n in range(READERS)]
        answers = await asyncio.gather(*(storage.get(queue, [id] * (n + 1)) for n, id in enumerate(ids)))
        sizes = [len(answer) for answer in answers]
        return "" if sizes == list(range(1, READERS + 1)) else f"readers got {sizes} slots"


def cancelled(plan: LevelPlan, until: float) -> Findings:
    """Cancel at every await."""
    location = plan.locations.new()
    with witness(plan.locations, location) as seen:
        way: Way[str] = Way(
            "a cancelled caller leaves nothing half done",
            "What was cancelled at any await happened whole or not at all, and nobody gets its reply.",
            "cancel",
            seen,
            "cancelled",
            plan.seed,
        )
        way.try_all(list(SCENES), Cancelling(seen, way).scene, until)
        return way.findings()
