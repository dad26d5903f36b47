"""Jobs in each state for the tests of the dashboard."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Self

from dibs import Queue, StorageUnavailable
from dibs.model.job import Error, Slot
from dibs.model.requests import Complete, Fail, SettleAction, Settlement
from dibs.storage.protocol import Storage


async def storage_of(queue: Queue) -> Storage:
    return await queue._client.bounded_storage()


async def slot_of(queue: Queue, id: str) -> Slot:
    [slot] = await (await storage_of(queue)).get(queue.name, [id])
    return slot


async def claim(queue: Queue, limit: int = 1) -> list[tuple[str, int]]:
    """Claim due jobs, and return their ids and fences."""
    storage = await storage_of(queue)
    lease = (await storage.grant([queue.name], 60_000, "host:1")).lease
    jobs = (await storage.claim(queue.name, lease, limit)).jobs
    return [(job.id, job.run.fence if job.run else 0) for job in jobs]


async def end(queue: Queue, id: str, action: SettleAction, payload: Any = None) -> None:
    """Enqueue a job, run it, and end its run with an action. No other job of the queue may be due."""
    await queue.enqueue({"of": id} if payload is None else payload, id=id)
    [(claimed, fence)] = await claim(queue)

    assert id == claimed
    storage = await storage_of(queue)
    [result] = await storage.settle(queue.name, [Settlement(id=id, fence=fence, action=action)])

    assert "done" == result.status


async def fail(queue: Queue, id: str, type: str = "shop.Broken", message: str = "no luck") -> None:
    await end(queue, id, Fail(error=Error(type=type, message=message, traceback=f"Traceback of {id}")))


async def complete(queue: Queue, id: str, result: bytes = b'"fine"') -> None:
    await end(queue, id, Complete(result=result))


class CountingStorage:
    """A storage that counts its calls, and that can be taken away."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.calls: list[str] = []
        self.is_away = False
        #: Verb -> number of its calls that pass, and the event that lets the later ones pass, too.
        self.held: dict[str, tuple[int, asyncio.Event]] = {}

    async def __aenter__(self) -> Self:
        await self.storage.__aenter__()
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.storage.__aexit__(*details)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.storage, name)
        if not inspect.iscoroutinefunction(found):
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            if self.is_away:
                raise StorageUnavailable("the storage is away <b>now</b>")
            if name in self.held and self.calls.count(name) > self.held[name][0]:
                await self.held[name][1].wait()
            return await found(*args, **kwargs)

        return call
