"""A machine that was suspended for longer than its lease: the storage refuses all its later calls."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.model.job import Job
from dibs.model.requests import Complete, Settlement
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import event_kinds, outcome, put
from tests.worker.supervisors import TIMEOUT, ProcessTree, on_all_storages, program, wait_for_log

#: Seconds of a lease: short, but long enough that a busy machine renews it in time.
LEASE = 2.0
LOST = "a lease is lost"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def take_over(app: Dibs, queue: str) -> Job:
    """Claim the job of a queue under a long lease, as soon as the other lease has expired."""
    lease = (await app.storage.grant([queue], 3_600_000, "successor")).lease
    async with asyncio.timeout(TIMEOUT):
        while True:
            await app.storage.reap(queue, 100)
            if jobs := (await app.storage.claim(queue, lease, 1)).jobs:
                return jobs[0]
            await app.storage.wait([queue], timeout=0.1)


async def complete(app: Dibs, queue: str, job: Job, result: bytes) -> str:
    assert job.run is not None
    action = Complete(result=result)
    [settled] = await app.storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=action)])
    return settled.status


async def suspend_and_resume(app: Dibs, gate: Gate, tree: ProcessTree, id: str) -> int:
    """Suspend the machine during a job, complete the job elsewhere, resume; return the first run's pid."""
    await put(app, "held", id)
    pid = await gate.arrived(id)
    tree.stop()
    job = await take_over(app, "held")
    await gate.release_without_waiting(id)
    tree.resume()
    await wait_for_exit(pid)
    assert "done" == await complete(app, "held", job, b'"heir"')
    return pid


@on_all_storages
async def test_the_runs_of_a_zombie_are_lost_and_it_starts_again(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        pid = await suspend_and_resume(app, gate, ProcessTree(zombie.pid), "a")
        line = await wait_for_log(zombie, LOST)
        await put(app, "held", "b")
        assert await gate.arrived("b") != pid
        await gate.release("b")
        zombie.terminate()
        _, err = await zombie.communicate()

    assert "all runs are stopped and the workers start again" in line
    assert LOST.encode() not in err, "the message appears once"
    assert b'"heir"' == (await outcome(app, "held", "a")).result
    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")
    assert ["completed"] == await event_kinds(app, "held", "b")


async def test_processes_of_a_suspended_supervisor_cannot_settle(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    """The supervisor cannot kill them, but the storage refuses their settlements by fence."""
    await put(app, "held", "a")
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        await gate.arrived("a")
        os.kill(zombie.pid, signal.SIGSTOP)
        job = await take_over(app, "held")
        await gate.release("a")
        os.kill(zombie.pid, signal.SIGCONT)
        await wait_for_log(zombie, LOST)
        assert "done" == await complete(app, "held", job, b'"heir"')

    assert b'"heir"' == (await outcome(app, "held", "a")).result
    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")


@pytest.mark.chaos
async def test_two_hundred_suspensions_leave_no_stale_write(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        for n in range(200):
            await suspend_and_resume(app, gate, ProcessTree(zombie.pid), f"round-{n}")

    for n in range(200):
        assert b'"heir"' == (await outcome(app, "held", f"round-{n}")).result
