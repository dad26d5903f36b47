"""A machine that stood still past its lease, and goes on: nothing it does counts any more."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from dibs.client.app import Dibs
from dibs.model.job import Job
from dibs.model.requests import Complete, Settlement
from tests.worker.fleet import PATIENCE, Fleet, everywhere, program, said
from tests.worker.workshop import Gate, ends, kinds, outcome, put

#: Short, but not so short that a busy machine would make a zombie of whom nobody stopped.
LEASE = 2.0
LOST = "a lease is lost"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def taken_over(app: Dibs, queue: str) -> Job:
    """Take the job of a queue as soon as nobody's lease is in the way, for a lease that lasts."""
    lease = (await app.storage.grant([queue], 3_600_000, "heir")).lease
    async with asyncio.timeout(PATIENCE):
        while True:
            await app.storage.reap(queue, 100)
            if jobs := (await app.storage.claim(queue, lease, 1)).jobs:
                return jobs[0]
            await app.storage.wait([queue], timeout=0.1)


async def complete(app: Dibs, queue: str, job: Job, result: bytes) -> str:
    assert job.run is not None
    how = Complete(result=result)
    [settled] = await app.storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=how)])
    return settled.status


async def stopped_and_continued(app: Dibs, gate: Gate, fleet: Fleet, id: str) -> int:
    """One round with one job; return the process that ran it for the zombie."""
    await put(app, "held", id)
    pid = await gate.arrived(id)
    fleet.stop()
    heir = await taken_over(app, "held")
    await gate.let_go_unseen(id)
    fleet.go_on()
    await ends(pid)
    assert "done" == await complete(app, "held", heir, b'"heir"')
    return pid


@everywhere
async def test_what_a_zombie_does_is_lost_and_it_starts_anew(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        pid = await stopped_and_continued(app, gate, Fleet(zombie.pid), "a")
        told = await said(zombie, LOST)
        await put(app, "held", "b")
        assert await gate.arrived("b") != pid
        await gate.let_go("b")
        zombie.terminate()
        _, err = await zombie.communicate()

    assert "all runs are stopped and the workers start again" in told
    assert LOST.encode() not in err, "said once"
    assert b'"heir"' == (await outcome(app, "held", "a")).result
    assert ["stalled", "completed"] == await kinds(app, "held", "a")
    assert ["completed"] == await kinds(app, "held", "b")


async def test_processes_cannot_settle_while_only_their_supervisor_stands_still(
    app: Dibs, gate: Gate, tmp_path: Path
) -> None:
    """Nobody ends them, and the storage refuses them by fence."""
    await put(app, "held", "a")
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        await gate.arrived("a")
        os.kill(zombie.pid, signal.SIGSTOP)
        heir = await taken_over(app, "held")
        await gate.let_go("a")
        os.kill(zombie.pid, signal.SIGCONT)
        await said(zombie, LOST)
        assert "done" == await complete(app, "held", heir, b'"heir"')

    assert b'"heir"' == (await outcome(app, "held", "a")).result
    assert ["stalled", "completed"] == await kinds(app, "held", "a")


@pytest.mark.chaos
async def test_two_hundred_rounds_of_it_leave_no_stale_write(app: Dibs, gate: Gate, tmp_path: Path) -> None:
    async with program(tmp_path, "held", lease=LEASE, heartbeat=0.2) as zombie:
        for n in range(200):
            await stopped_and_continued(app, gate, Fleet(zombie.pid), f"round-{n}")

    for n in range(200):
        assert b'"heir"' == (await outcome(app, "held", f"round-{n}")).result
