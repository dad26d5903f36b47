"""The server of the simulated storage: a process that runs the calls of all clients on one storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import evolve

from dibs.model.requests import QueueStep
from dibs.model.results import ClaimResult, SettleAndClaimResult, WaitResult
from dibs.storage.capabilities import Capabilities
from dibs.storage.memory import MemoryStorage
from dibs_conformance.simulation.network import Call, Link, delay_on
from dibs_conformance.simulation.world import Process, World

#: Called with a call that took effect, and its result, in the order of the effects.
Observer = Callable[[Call, Any], None]
#: The verbs that wait at the server.
WAITING: Final = frozenset({"wait", "claim_blocking", "claim_blocking_any"})

#: Seconds for which the end of a blocking claim is remembered that has not begun.
FORGET_CLAIM: Final = 10.0


class ServedStorage:
    """The storage in memory, with the verbs of the capabilities `many_queues` and `blocking_claim`.

    They are made of its own verbs: a step of `serve` is a settle_and_claim, and a blocking claim repeats a
    claim and a wait.
    """

    def __init__(self, memory: MemoryStorage, capabilities: Capabilities) -> None:
        self.memory, self.capabilities = memory, capabilities
        self.durability = memory.durability
        #: The blocking claims that were told to end.
        self._ended: dict[str, asyncio.Event] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.memory, name)

    async def serve(self, steps: Sequence[QueueStep], lease: str) -> Sequence[SettleAndClaimResult]:
        results = []
        for step in steps:
            if step.limit:
                result = await self.memory.settle_and_claim(step.queue, step.settlements, lease, step.limit)
            else:
                settled = await self.memory.settle(step.queue, step.settlements) if step.settlements else []
                now = (await self.memory.renew([step.queue], "none", 1))[step.queue].now
                result = SettleAndClaimResult(tuple(settled), ClaimResult(now=now))
            results.append(result)
        return results

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        found = await self.claim_blocking_any([queue], lease, limit, claim_id=claim_id, timeout=timeout)
        return found[queue]

    async def claim_blocking_any(
        self, queues: Sequence[str], lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> Mapping[str, ClaimResult]:
        deadline = asyncio.get_running_loop().time() + timeout
        ended = self._ended.setdefault(claim_id, asyncio.Event())
        try:
            while True:
                found, left = {}, limit
                for queue in queues:
                    if left:
                        found[queue] = await self.memory.claim(queue, lease, left)
                        left -= len(found[queue].jobs)
                seconds = deadline - asyncio.get_running_loop().time()
                lost = any(result.lost for result in found.values())
                if left < limit or lost or seconds <= 0 or ended.is_set():
                    return found
                await self._wait_for_work(found, seconds, ended)
        finally:
            self._ended.pop(claim_id, None)

    async def _wait_for_work(
        self, found: Mapping[str, ClaimResult], seconds: float, ended: asyncio.Event
    ) -> None:
        since = {queue: result.token for queue, result in found.items()}
        wait = asyncio.ensure_future(self.memory.wait(list(found), since=since, timeout=seconds))
        end = asyncio.ensure_future(ended.wait())
        try:
            await asyncio.wait([wait, end], return_when=asyncio.FIRST_COMPLETED)
        finally:
            wait.cancel()
            end.cancel()

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        if claim_id not in self._ended:
            # The claim may begin some seconds after this call, or have ended.
            asyncio.get_running_loop().call_later(FORGET_CLAIM, self._ended.pop, claim_id, None)
        self._ended.setdefault(claim_id, asyncio.Event()).set()


class StorageServer:
    """The process of the storage. It survives its own restarts, as a durable storage does."""

    def __init__(self, world: World, observe: Observer, more: Mapping[str, bool]) -> None:
        self.process = Process(world, "storage")
        self.capabilities = evolve(
            MemoryStorage.capabilities, shared=True, manual_clock=False, server_clock=True, **more
        )
        self.storage = ServedStorage(MemoryStorage("simulated"), self.capabilities)
        self._world, self._observe = world, observe
        self._calls: dict[Call, None] = {}
        #: False while the server restarts.
        self.up = True
        #: The links of all clients, by the name of their process.
        self.links: dict[str, Link] = {}
        self.run_now(self.storage.memory.open())

    @property
    def pending(self) -> int:
        """The number of calls that the server has taken and not answered."""
        return len(self._calls)

    @property
    def now_ms(self) -> int:
        """The time of the storage in ms since the epoch."""
        now: int = self.run_now(self.storage.renew(["plain"], "none", 1))["plain"].now
        return now

    def run_now(self, verb: Any) -> Any:
        """Run a verb that does not wait, at this instant, and return its result."""
        before = asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__
        asyncio._set_running_loop(self.process.loop)  # noqa: SLF001
        try:
            verb.send(None)
        except StopIteration as end:
            return end.value
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001
        raise RuntimeError("a verb of the storage in memory waited")

    def receive(self, call: Call) -> None:
        """Take a request from the network."""
        if self.up:
            self._calls[call] = None
            self.process.post(self._serve, call)
        else:
            self._send(call, None, call.lost())

    def forget(self, call: Call) -> None:
        """End a wait whose caller has gone."""
        if call.task is not None:
            self.process.post(call.task.cancel)

    def restart(self, seconds: float) -> None:
        """Lose all connections, and refuse new ones for a time. The jobs stay."""
        self.up = False
        for call in list(self._calls):
            if call.task is not None:
                self.process.post(call.task.cancel)
            self._send(call, None, call.lost())
        self._calls.clear()
        self._world.call_in(seconds, setattr, self, "up", True)  # noqa: FBT003 - setattr takes positions

    def _serve(self, call: Call) -> None:
        if call not in self._calls:
            return  # the server was restarted before it took the request from its socket
        verb = getattr(self.storage, call.verb)(*call.args, **call.kwargs)
        if call.verb in WAITING:
            call.task = self.process.loop.create_task(self._wait(call, verb))
            return
        result = error = None
        try:
            verb.send(None)
        except StopIteration as end:
            result = end.value
            self._observe(call, result)
        except Exception as raised:  # noqa: BLE001 - the client gets the error
            error = raised
        self._finish(call, result, error)

    async def _wait(self, call: Call, verb: Any) -> None:
        result = error = None
        try:
            result = await verb
            if call.verb != "wait":
                self._observe(call, result)
            elif call.wakeup_is_lost and result.woken:
                await asyncio.sleep(call.kwargs.get("timeout") or 0.0)
                result = WaitResult(woken=False, since=result.since)
        except asyncio.CancelledError:
            self._calls.pop(call, None)
            return
        except Exception as raised:  # noqa: BLE001 - the client gets the error
            error = raised
        self._finish(call, result, error)

    def _finish(self, call: Call, result: Any, error: Exception | None) -> None:
        if self._calls.pop(call, self) is None:
            self._send(call, result, error)

    def _send(self, call: Call, result: Any, error: Exception | None) -> None:
        link = self.links[call.client.name]
        if link.state == "silent" or not (call.reply_arrives or call.loss_is_seen):
            return
        if not call.reply_arrives:
            result, error = None, call.lost()
        seconds = delay_on(link, self._world.random)
        self._world.call_in(seconds, call.client.post, call.resolve, result, error)
