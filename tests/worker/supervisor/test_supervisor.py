"""Worker processes on a storage they share: real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from importlib.util import find_spec

import pytest

from dibs.app import Dibs
from dibs.model.overrides import Overrides
from dibs.model.results import Counts
from dibs.worker import run
from dibs.worker.processes.child_main import uvloop_factory
from dibs.worker.supervisor import supervisor
from dibs.worker.supervisor.workers import WorkerHandle
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, ids, outcome, put, request, wait_for_count
from tests.worker.supervisors import TIMEOUT, ProgressRecorder, working

APPS = "tests.worker.apps"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def counts(app: Dibs, queue: str) -> Counts:
    return (await app.storage.counts([queue]))[queue]


async def test_jobs_run_in_processes(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a", "b")
    async with working(app, "held", number=2) as task:
        pids = {await gate.arrived("a"), await gate.arrived("b")}
        await gate.release("a", "b")
        report = await task

    assert os.getpid() not in pids
    assert {int((await outcome(app, "held", id)).result or b"") for id in "ab"} == pids
    assert (2, 2, 0) == (report.total("claimed"), report.total("completed"), report.crashes)


async def test_each_job_runs_once(app: Dibs) -> None:
    await put(app, "echo", *ids(300))
    async with working(app, "echo", number=2) as task:
        report = await task

    assert 300 == (await counts(app, "echo")).completed
    assert report.total("claimed") == report.total("completed") == 300


async def test_the_lifespan_is_entered_once_in_each_process(app: Dibs) -> None:
    await put(app, "resources", *ids(30))
    async with working(app, "resources", number=1) as task:
        await task
    pids = {int(json.loads((await outcome(app, "resources", id)).result or b"")[0]) for id in ids(30)}

    assert 1 == len(pids)
    assert os.getpid() not in pids


async def test_a_killed_process_is_noticed_at_once(app: Dibs, gate: Gate) -> None:
    """The run that the process had started is stalled with the reason, long before the lease would expire."""
    await put(app, "held", "a")
    async with working(app, "held", lease=3600.0, heartbeat=1000.0) as task:
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        gate.expect_again("a")
        pid = await gate.arrived("a")
        stalled = await current(app, "held", "a")
        await gate.release("a")
        report = await task

    assert 1 == stalled.stalls
    assert stalled.error is not None
    assert "ProcessDied" == stalled.error.type
    assert "was killed by SIGKILL while it ran this" in stalled.error.message
    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")
    assert (1, 1, ()) == (report.crashes, report.total("stalled"), report.processes)
    assert int((await outcome(app, "held", "a")).result or b"") == pid


@pytest.mark.long
async def test_claimed_runs_that_had_not_started_are_released(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only started runs of a process that died are stalled."""
    seen: list[WorkerHandle] = []
    on_crash = supervisor.Supervisor._on_crash

    def hide_starts(self: supervisor.Supervisor, worker: WorkerHandle, reason: str) -> None:
        # Pretend that the process died between the claim and the start of the run.
        seen.append(worker)
        for index in range(len(worker.started)):
            worker.started[index] = 0
        on_crash(self, worker, reason)

    monkeypatch.setattr(supervisor.Supervisor, "_on_crash", hide_starts)
    await put(app, "held", "a")
    async with working(app, "held") as task:
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        gate.expect_again("a")
        await gate.arrived("a")
        await gate.release("a")
        report = await task

    assert 1 == len(seen)
    assert ["released", "completed"] == await event_kinds(app, "held", "a")
    assert 1 == report.total("released")


@pytest.mark.long
async def test_a_claim_that_no_message_reported_is_released(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before it sends RunsClaimed: its lease is replaced and dropped."""
    record_runs = supervisor.Supervisor._record_runs
    lost = asyncio.Event()
    monkeypatch.setattr(supervisor.Supervisor, "_record_runs", lambda *_: lost.set())
    await put(app, "held", "a")
    task = asyncio.create_task(run(app, queues=["held"], processes=1))
    pid = await gate.arrived("a")
    # The supervisor reads a message up to 20 ms after the run has started.
    await lost.wait()
    monkeypatch.setattr(supervisor.Supervisor, "_record_runs", record_runs)
    os.kill(pid, signal.SIGKILL)
    gate.expect_again("a")
    await gate.arrived("a")
    await gate.release("a")
    await wait_for_count(app, "held", "completed")
    os.kill(os.getpid(), signal.SIGTERM)
    await task

    assert ["released", "completed"] == await event_kinds(app, "held", "a")


@pytest.mark.skipif(find_spec("uvloop") is None, reason="an extra")
async def test_worker_processes_run_on_uvloop_if_it_is_installed(app: Dibs) -> None:
    await put(app, "loop_class", "a")
    async with working(app, "loop_class") as task:
        await task

    assert b'"uvloop"' == (await outcome(app, "loop_class", "a")).result
    assert "asyncio" in type(asyncio.get_running_loop()).__module__, "the application keeps its event loop"


def test_without_uvloop_worker_processes_run_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert uvloop_factory() is None, "asyncio chooses its default loop"


@pytest.mark.long
async def test_a_handler_that_holds_the_gil_does_not_lose_the_lease(app: Dibs, gate: Gate) -> None:
    await put(app, "gil", "a")
    async with working(app, "gil", lease=0.6, heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        await gate.release("a")
        before = (await current(app, "gil", "a")).run
        await asyncio.sleep(1.2)
        after = (await current(app, "gil", "a")).run

        assert before is not None
        assert before == after
        assert not task.done()
        os.kill(pid, signal.SIGKILL)
        await wait_for_exit(pid)


@pytest.mark.chaos
async def test_a_handler_that_holds_the_gil_for_a_minute_disturbs_no_other_process(
    app: Dibs, gate: Gate
) -> None:
    """The run of the handler keeps its lease, and the jobs of another process end within the minute."""
    await put(app, "gil", request("a", 62_000_000, overrides=Overrides(timeout=None)))
    async with working(app, "gil", "naps", number=2, lease=10.0, heartbeat=0.5) as task:
        await gate.arrived("a")
        await gate.release("a")
        begun = asyncio.get_running_loop().time()
        rounds = 0
        while asyncio.get_running_loop().time() < begun + 60:
            await put(app, "naps", *[request(f"{rounds}-{id}", 0.01) for id in ids(50)])
            rounds += 1
            await wait_for_count(app, "naps", "completed", 50 * rounds)
        assert (await current(app, "gil", "a")).run is not None
        async with asyncio.timeout(TIMEOUT):
            report = await task

    assert ["completed"] == await event_kinds(app, "gil", "a")
    assert (0, 0, 0) == (report.crashes, report.total("lost"), report.total("stalled"))


async def test_an_overrun_retires_its_process(app: Dibs, gate: Gate) -> None:
    await put(app, "overruns", "a")
    async with working(app, "overruns", "echo", heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        await wait_for_exit(pid)
        await put(app, "echo", "b")
        await wait_for_count(app, "echo", "completed")
        await app.storage.cancel("overruns", ["a"])
        report = await task

    assert ["timed_out", "cancelled"] == await event_kinds(app, "overruns", "a")
    assert (1, 0, 0) == (report.overruns, report.crashes, report.total("stalled"))


async def test_a_run_in_a_worker_process_can_be_cancelled(app: Dibs, gate: Gate) -> None:
    await put(app, "waits_for_cancel", "a")
    async with working(app, "waits_for_cancel", heartbeat=0.05) as task:
        await gate.arrived("a")
        await app.storage.cancel("waits_for_cancel", ["a"], running=True)
        await task

    assert "cancelled" == (await outcome(app, "waits_for_cancel", "a")).kind


async def test_a_lost_lease_kills_all_processes_at_once(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    async with working(app, "held", heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        lease = (await current(app, "held", "a")).run
        assert lease is not None
        assert lease.lease is not None
        gate.expect_again("a")
        await app.storage.drop(["held"], lease.lease, 1)
        await wait_for_exit(pid)
        await gate.arrived("a")
        await gate.release("a")
        report = await task

    assert ["released", "completed"] == await event_kinds(app, "held", "a")
    assert 1 == report.total("lost")


async def test_a_cancelled_call_ends_its_processes(app: Dibs, gate: Gate) -> None:
    await put(app, "held", request("a", overrides=Overrides(timeout=None)))
    async with working(app, "held") as task:
        pid = await gate.arrived("a")
        task.cancel()
        await wait_for_exit(pid)
        await asyncio.wait([task])

    assert 0 == (await current(app, "held", "a")).attempts


async def test_the_runs_of_a_process_that_dies_while_retiring_are_recovered(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    watched = ProgressRecorder()
    async with working(app, "held", "overruns", lease=3600.0, heartbeat=1000.0, progress=watched) as task:
        pid = await gate.arrived("a")
        gate.expect_again("a")
        await put(app, "overruns", "b")
        assert await gate.arrived("b") == pid
        await watched.until(lambda report: report.overruns == 1)
        os.kill(pid, signal.SIGKILL)
        await gate.arrived("a")
        await gate.release("a")
        await app.storage.cancel("overruns", ["b"])
        report = await task

    assert ["stalled", "completed"] == await event_kinds(app, "held", "a")
    assert (1, 1) == (report.overruns, report.crashes)


class TestIsolated:
    """A handler with executor="process" in a worker process."""

    async def test_it_runs_the_handler(self, app: Dibs, gate: Gate) -> None:
        await put(app, "alone", "a")
        async with working(app, "alone") as task:
            pid = await gate.arrived("a")
            await gate.release("a")
            report = await task

        assert (await outcome(app, "alone", "a")).result == str(pid).encode()
        assert pid not in report.processes
