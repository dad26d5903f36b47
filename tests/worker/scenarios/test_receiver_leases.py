"""The leases of a receiver whose process is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dibs.app import Dibs
from tests.worker.jobs import current
from tests.worker.supervisors import TIMEOUT, on_all_storages, script, wait_for_log

#: A program that claims one job in each of three queues, under leases that expire soon unless renewed.
HOLDER = """
import asyncio, sys
from dibs.client.receiver import Receiver
from tests.worker.apps import app

renewed, renew = asyncio.Event(), Receiver._renew_lease


async def renew_and_notify(self, storage, held):
    await renew(self, storage, held)
    if self._client.name == "own" and held.claims:
        renewed.set()


Receiver._renew_lease = renew_and_notify


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
        await renewed.wait()
        print("held", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@on_all_storages
async def test_a_killed_holder_loses_its_jobs_with_their_leases(app: Dibs, tmp_path: Path) -> None:
    """The receiver's lease expires soon; an extended lease, or one that the job sets, lasts longer."""
    for queue in ("plain", "extended"):
        await app.queue(queue).enqueue(1, id="a")
    await app.queue("own").enqueue(1, id="a", lease=3600)
    async with script(tmp_path, HOLDER) as holder:
        await wait_for_log(holder, "held")
    async with asyncio.timeout(TIMEOUT), app.queue("plain").receive(lease=0.5) as claims:
        claim = await anext(claims)
        assert 1 == claim.stalls
        await claim.complete()

    for queue in ("extended", "own"):
        assert [] == list(await app.storage.reap(queue, 10))
        assert (await current(app, queue, "a")).run is not None
