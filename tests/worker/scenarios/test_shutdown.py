"""The end of a program: by one signal, by two, by SIGKILL, and by SIGKILL during its shutdown."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterable
from pathlib import Path

import psutil
import pytest

from dibs.app import Dibs
from dibs.model.results import Counts
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, ids, outcome, put, request
from tests.worker.supervisors import TIMEOUT, on_all_storages, program, wait_for_log, working

GRACE_MESSAGE = "a second signal releases"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@on_all_storages
async def test_sigterm_waits_for_running_jobs_and_claims_no_more(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    """A process may still claim a few jobs until it learns of the signal, and runs or releases them."""
    await put(app, "held", "a")
    later = ids(100)
    async with program(tmp_path, "held", "naps", grace=3600) as worker:
        pid = await gate.arrived("a")
        worker.terminate()
        os.kill(pid, signal.SIGTERM)  # like systemd, which sends the signal to all processes of the group
        await wait_for_log(worker, GRACE_MESSAGE)
        # A process that went on claiming would run all of these before it exits.
        await put(app, "naps", *[request(id, 0.5) for id in later])
        await gate.release("a")
        out, _ = await worker.communicate()

    assert 0 == worker.returncode
    assert ["completed"] == await event_kinds(app, "held", "a")
    left = (await app.storage.counts(["naps"]))["naps"]
    assert (100 - (int(out.split()[0]) - 1), 0) == (left.waiting, left.active)
    assert left.waiting > 0


@on_all_storages
async def test_a_second_sigterm_releases_at_once(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    await put(app, "held", "a")
    await put(app, "held_async", "b")
    async with program(tmp_path, "held", "held_async", grace=3600) as worker:
        pids = {await gate.arrived("a"), await gate.arrived("b")}
        worker.terminate()
        await wait_for_log(worker, GRACE_MESSAGE)
        worker.terminate()
        out, _ = await worker.communicate()
    for pid in pids:
        await wait_for_exit(pid)

    # A claim of the other process that was in flight may have taken a job again, and released it, too.
    assert (0, b"0") == (worker.returncode, out.split()[0])
    for queue, id in (("held", "a"), ("held_async", "b")):
        job = await current(app, queue, id)
        assert (None, 0, 0) == (job.run, job.attempts, job.stalls)


@on_all_storages
async def test_sigkill_ends_the_worker_processes_and_another_worker_runs_the_jobs(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    """The jobs are stalled. Another worker gets them within a second after the lease ends (not timed)."""
    lease = 1.0
    await put(app, "held", "a")
    async with program(tmp_path, "held", lease=lease, heartbeat=0.2) as worker:
        pid = await gate.arrived("a")
        gate.expect_again("a")
        worker.kill()
        await wait_for_exit(pid)
    async with working(app, "held") as successor:
        await gate.arrived("a")
        job = await current(app, "held", "a")
        await gate.release("a")
        await successor

    assert (1, 0) == (job.stalls, job.timeouts)
    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")


@on_all_storages
async def test_no_job_is_lost_by_sigkill_during_a_shutdown(app: Dibs, tmp_path: Path) -> None:
    await kill_after_sigterm(app, tmp_path, [0.0, 0.02])


@pytest.mark.chaos
@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_no_job_is_lost_by_twenty_sigkills_during_shutdowns(
    app: Dibs, tmp_path: Path, seed: int
) -> None:
    generator = random.Random(seed)
    await kill_after_sigterm(app, tmp_path, [generator.uniform(0, 0.6) for _ in range(20)])


async def kill_after_sigterm(app: Dibs, folder: Path, delays: Iterable[float]) -> None:
    """Kill a program `delay` seconds after SIGTERM, for each delay; another worker then runs the rest."""
    rounds = list(delays)
    for number, delay in enumerate(rounds):
        names = [f"{number}-{id}" for id in ids(100)]
        await put(app, "naps", *[request(id, 0.05) for id in names])
        async with program(folder, "naps", lease=1.0, heartbeat=0.2, grace=0.3) as worker:
            await wait_for_active(app, "naps")
            children = psutil.Process(worker.pid).children(recursive=True)
            worker.terminate()
            # The delay is the input of this test; it waits for no event.
            await asyncio.sleep(delay)
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
        for child in children:
            await wait_for_exit(child.pid)
    async with asyncio.timeout(TIMEOUT * 2), working(app, "naps", number=2, heartbeat=0.2) as successor:
        await successor

    for number in range(len(rounds)):
        for id in ids(100):
            assert "completed" == (await outcome(app, "naps", f"{number}-{id}")).kind
    [counts] = (await app.storage.counts(["naps"])).values()
    assert (0, 0, 100 * len(rounds)) == (counts.waiting, counts.active, counts.completed)


async def wait_for_active(app: Dibs, queue: str) -> None:
    """Wait until some jobs of a queue are active."""

    def some(counts: Counts) -> bool:
        return counts.active > 0

    since = None
    async with asyncio.timeout(TIMEOUT):
        while not some((await app.storage.counts([queue]))[queue]):
            since = (await app.storage.wait([queue], for_="events", since=since, timeout=0.05)).since
