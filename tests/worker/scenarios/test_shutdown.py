"""How a program ends: by one signal, by two, by SIGKILL, and by SIGKILL at any moment of its end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from dibs.client.app import Dibs
from dibs.model.results import Counts
from tests.worker.fleet import PATIENCE, everywhere, program, said, working
from tests.worker.workshop import Gate, current, ends, ids, kinds, outcome, put, request

GRACE_TOLD = "a second signal releases"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@everywhere
async def test_sigterm_waits_for_what_runs_and_claims_no_more(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "held", "a")
    async with program(tmp_path, "held", grace=3600) as worker:
        pid = await gate.arrived("a")
        worker.terminate()
        os.kill(pid, signal.SIGTERM)  # as systemd does: to the whole group
        await said(worker, GRACE_TOLD)
        await put(app, "held", "later")
        await gate.let_go("a")
        out, _ = await worker.communicate()

    # A claim of the other process that was on its way may have taken the later one, and released it.
    assert (0, b"1") == (worker.returncode, out.split()[0])
    assert ["completed"] == await kinds(app, "held", "a")
    assert 0 == (await current(app, "held", "later")).attempts


@everywhere
async def test_twice_releases_now(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "held", "a")
    await put(app, "held_async", "b")
    async with program(tmp_path, "held", "held_async", grace=3600) as worker:
        pids = {await gate.arrived("a"), await gate.arrived("b")}
        worker.terminate()
        await said(worker, GRACE_TOLD)
        worker.terminate()
        out, _ = await worker.communicate()
    for pid in pids:
        await ends(pid)

    # A claim of the other process that was on its way may have taken one again, and released it, too.
    assert (0, b"0") == (worker.returncode, out.split()[0])
    for queue, id in (("held", "a"), ("held_async", "b")):
        job = await current(app, queue, id)
        assert (None, 0, 0) == (job.run, job.attempts, job.stalls)


@everywhere
async def test_sigkill_ends_its_processes_and_another_has_its_jobs_soon(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    """As stalls; within the lease and a second where a worker looks, which is not timed here."""
    lease = 1.0
    await put(app, "held", "a")
    async with program(tmp_path, "held", lease=lease, heartbeat=0.2) as worker:
        pid = await gate.arrived("a")
        gate.again("a")
        worker.kill()
        await ends(pid)
    async with working(app, "held") as heir:
        await gate.arrived("a")
        job = await current(app, "held", "a")
        await gate.let_go("a")
        await heir

    assert (1, 0) == (job.stalls, job.timeouts)
    assert ["stalled", "completed"] == await kinds(app, "held", "a")


@everywhere
async def test_nothing_is_lost_by_sigkill_at_a_moment_of_a_shutdown(app: Dibs, tmp_path: Path) -> None:
    await kill_at(app, tmp_path, [0.0, 0.02])


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_nothing_is_lost_by_sigkill_at_twenty(app: Dibs, tmp_path: Path, seed: int) -> None:
    luck = random.Random(seed)
    await kill_at(app, tmp_path, [luck.uniform(0, 0.6) for _ in range(20)])


async def kill_at(app: Dibs, folder: Path, moments: Iterable[float]) -> None:
    """Kill a program so many seconds after its first SIGTERM, and let another do what is left."""
    rounds = list(moments)
    for number, moment in enumerate(rounds):
        names = [f"{number}-{id}" for id in ids(100)]
        await put(app, "naps", *[request(id, 0.05) for id in names])
        async with program(folder, "naps", lease=1.0, heartbeat=0.2, grace=0.3) as worker:
            await begun(app, "naps")
            children = psutil.Process(worker.pid).children(recursive=True)
            worker.terminate()
            # The moment is what is tried here, not waited for.
            await asyncio.sleep(moment)
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
        for child in children:
            await ends(child.pid)
    async with asyncio.timeout(PATIENCE * 2), working(app, "naps", number=2, heartbeat=0.2) as heir:
        await heir

    for number in range(len(rounds)):
        for id in ids(100):
            assert "completed" == (await outcome(app, "naps", f"{number}-{id}")).kind
    [counts] = (await app.storage.counts(["naps"])).values()
    assert (0, 0, 100 * len(rounds)) == (counts.waiting, counts.active, counts.completed)


async def begun(app: Dibs, queue: str) -> None:
    """Wait until some jobs of a queue are active."""

    def some(counts: Counts) -> bool:
        return counts.active > 0

    since = None
    async with asyncio.timeout(PATIENCE):
        while not some((await app.storage.counts([queue]))[queue]):
            since = (await app.storage.wait([queue], for_="events", since=since, timeout=0.05)).since
