"""Leases of claims by hand, when the process that holds them is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dibs.client.app import Dibs
from tests.worker.fleet import PATIENCE, everywhere, said, script
from tests.worker.workshop import current

#: Claims one job each of three queues, under a lease that ends soon if nobody renews it.
HOLDER = """
import asyncio, sys
from dibs.client.receiver import Receiver
from tests.worker.apps import app

beaten, renew = asyncio.Event(), Receiver._renew


async def renewed(self, storage, tenure):
    await renew(self, storage, tenure)
    if self._client.name == "own" and tenure.held:
        beaten.set()


Receiver._renew = renewed


async def hold(queue, extend_by, held):
    async with app.queue(queue).receive(lease=0.5) as claims:
        claim = await anext(claims)
        if extend_by:
            await claim.extend(extend_by)
        held.release()
        await asyncio.Event().wait()


async def main():
    async with app, asyncio.TaskGroup() as group:
        held = asyncio.Semaphore(0)
        for queue, extend_by in (("plain", 0), ("extended", 3600), ("own", 0)):
            group.create_task(hold(queue, extend_by, held))
        for _ in range(3):
            await held.acquire()
        await beaten.wait()
        print("held", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@everywhere
async def test_a_killed_holder_loses_its_jobs_with_their_leases(app: Dibs, tmp_path: Path) -> None:
    """One by the lease of its receiver; one that was extended, or has a lease of its own, much later."""
    for queue in ("plain", "extended"):
        await app.queue(queue).enqueue(1, id="a")
    await app.queue("own").enqueue(1, id="a", lease=3600)
    async with script(tmp_path, HOLDER) as holder:
        await said(holder, "held")
    async with asyncio.timeout(PATIENCE), app.queue("plain").receive(lease=0.5) as claims:
        claim = await anext(claims)
        assert 1 == claim.stalls
        await claim.complete()

    for queue in ("extended", "own"):
        assert [] == list(await app.storage.reap(queue, 10))
        assert (await current(app, queue, "a")).run is not None
