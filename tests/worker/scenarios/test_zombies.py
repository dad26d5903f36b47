"""A machine that was suspended for longer than its lease: the storage refuses all its later calls."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs.app import Dibs
from dibs.errors import JobCancelled
from dibs.model.job import Job
from dibs.model.overrides import Overrides
from dibs.model.requests import Complete, Settlement
from dibs.model.retry import Immediate
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, ids, outcome, put, request, wait_for_count
from tests.worker.supervisors import (
    TIMEOUT,
    ProcessTree,
    ProgressRecorder,
    on_all_storages,
    program,
    wait_for_log,
    working,
)

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


# -- Handlers that kill their process: the run is settled at once, with the reason, and other jobs run --


#: A lease that outlasts the test: a job that is retried has not waited for the end of the lease.
SLOW: dict[str, Any] = {"lease": 3600.0, "heartbeat": 1000.0}
ONCE = Overrides(max_stalls=0, backoff=Immediate())
POISONS = {"exit": "exited with code 7", "segfault": "was killed by SIGSEGV"}
# Python 3.12 and later count C frames and raise RecursionError.
if sys.version_info < (3, 12):
    POISONS["recursion"] = "was killed by SIGSEGV"


@pytest.mark.parametrize(("how", "reason"), POISONS.items(), ids=POISONS)
async def test_a_run_whose_process_died_is_stalled_with_the_reason(app: Dibs, how: str, reason: str) -> None:
    await put(app, "poison", request("a", how))
    async with working(app, "poison", until="stopped", **SLOW):
        await wait_for_count(app, "poison", "scheduled")
        job = await current(app, "poison", "a")

    assert (1, 0, 0) == (job.stalls, job.retries, job.timeouts)
    assert job.error is not None
    assert f"{reason} while it ran this" in job.error.message
    assert job.run_at > job.enqueued_at + 3_000_000, "the backoff is applied"


async def test_a_memory_limit_is_an_error_of_the_run(app: Dibs) -> None:
    """The interpreter raises MemoryError; if it cannot, the process dies and the run is stalled."""
    await put(app, "poison", request("a", "memory"))
    async with working(app, "poison", until="stopped", **SLOW):
        await wait_for_count(app, "poison", "scheduled")
        job = await current(app, "poison", "a")

    assert job.error is not None
    assert (job.error.type, job.retries, job.stalls) in [("MemoryError", 1, 0), ("ProcessDied", 0, 1)]


@on_all_storages
async def test_after_max_stalls_the_failure_handler_runs(app: Dibs) -> None:
    await put(app, "poison", request("a", "exit", overrides=Overrides(max_stalls=1, backoff=Immediate())))
    async with working(app, "poison", **SLOW) as task:
        report = await task

    failed = await outcome(app, "poison", "a")
    assert failed.error is not None
    assert ("failed", 2, "TooManyStalls") == (failed.kind, failed.stalls, failed.error.type)
    assert "exited with code 7" in failed.error.message
    assert (2, 1) == (report.crashes, report.queue("poison!fail").completed)


async def test_other_jobs_all_end_while_a_job_keeps_killing_processes(app: Dibs) -> None:
    watched = ProgressRecorder()
    often = Overrides(max_stalls=4, backoff=Immediate())
    await put(app, "poison", request("a", "exit", overrides=often))
    await put(app, "naps", *[request(id, 0.01) for id in ids(200)])
    async with working(app, "poison", "naps", number=2, progress=watched, **SLOW) as task:
        report = await task

    assert 5 == report.crashes
    assert 200 == (await app.storage.counts(["naps"]))["naps"].completed


async def test_each_crash_is_logged_and_the_process_replaced(
    app: Dibs, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    await put(app, "poison", *[request(id, "exit", overrides=ONCE) for id in ids(3)])
    async with working(app, "poison", "held") as task:
        await put(app, "held", "b")
        await gate.arrived("b")
        await gate.release("b")
        await task

    assert "completed" == (await outcome(app, "held", "b")).kind
    assert 3 == caplog.text.count("exited with code 7; the runs it had started are stalled")


async def test_a_hook_that_kills_its_process_cannot_do_so_for_ever(app: Dibs) -> None:
    """The hook is called after two runs and when a third run is refused; then the job fails without it."""
    await put(app, "poisonous_hook", "a")
    async with working(app, "poisonous_hook", **SLOW) as task:
        report = await task

    failed = await outcome(app, "poisonous_hook", "a")
    assert failed.error is not None
    assert ("failed", 3, "TooManyStalls") == (failed.kind, failed.stalls, failed.error.type)
    assert 3 == report.crashes


# -- The cancellation of a running job: it ends as cancelled, and its waiter gets JobCancelled -------


async def cancel(app: Dibs, queue: str, id: str) -> str:
    """Cancel a running job, check that a waiter gets JobCancelled, and return the kind of its outcome."""
    ticket = app.queue(queue).ticket(id, (await current(app, queue, id)).revision)
    waiting = asyncio.create_task(ticket.result(wait=60))
    await app.queue(queue).cancel(id, running=True)
    with pytest.raises(JobCancelled):
        await waiting
    return (await outcome(app, queue, id)).kind


QUEUES = ("waits_for_cancel", "minds_cancel", "minds_cancel_alone", "alone")


@on_all_storages
async def test_a_running_job_ends_as_cancelled(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An async handler is cancelled, a `def` handler reads job.cancelled, an isolated process is killed."""
    monkeypatch.setenv("CANCEL_GRACE", "0.2")
    for queue in QUEUES:
        await put(app, queue, queue)
    async with working(app, *QUEUES, heartbeat=0.1) as task:
        for queue in QUEUES:
            await gate.arrived(queue)
            if queue.startswith("minds"):
                await gate.release_without_waiting(queue)
        ends = await asyncio.gather(*(cancel(app, queue, queue) for queue in QUEUES))
        report = await task

    assert ["cancelled"] * 4 == ends
    assert (4, 0) == (report.total("cancelled"), report.crashes)
