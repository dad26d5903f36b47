"""Workers in processes of their own, on a storage they share: real processes, real signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from importlib.util import find_spec

import pytest

from dibs.client.app import Dibs
from dibs.model.job import Overrides
from dibs.model.results import Counts
from dibs.worker import run
from dibs.worker.processes.child_main import run_event_loop
from dibs.worker.supervisor import supervisor
from dibs.worker.supervisor.worker_handle import WorkerHandle
from tests.worker.fleet import PATIENCE, Watched, working
from tests.worker.workshop import Gate, counted, current, ends, ids, kinds, outcome, put, request

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
        await gate.let_go("a", "b")
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
    """Long before its lease would be over; what it had started is a stall, with the reason."""
    await put(app, "held", "a")
    async with working(app, "held", lease=3600.0, heartbeat=1000.0) as task:
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        gate.again("a")
        pid = await gate.arrived("a")
        stalled = await current(app, "held", "a")
        await gate.let_go("a")
        report = await task

    assert 1 == stalled.stalls
    assert stalled.error is not None
    assert "ProcessDied" == stalled.error.type
    assert "was killed by SIGKILL while it ran this" in stalled.error.message
    assert ["stalled", "completed"] == await kinds(app, "held", "a")
    assert (1, 1, ()) == (report.crashes, report.total("stalled"), report.processes)
    assert int((await outcome(app, "held", "a")).result or b"") == pid


async def test_what_was_claimed_and_not_started_is_released(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a process that dies only started jobs are stalls."""
    hidden: list[WorkerHandle] = []
    on_crash = supervisor.Supervisor._on_crash

    def deny(self: supervisor.Supervisor, worker: WorkerHandle, reason: str) -> None:
        # As if it had died between its claim and the start of the run.
        hidden.append(worker)
        for index in range(len(worker.started)):
            worker.started[index] = 0
        on_crash(self, worker, reason)

    monkeypatch.setattr(supervisor.Supervisor, "_on_crash", deny)
    await put(app, "held", "a")
    async with working(app, "held") as task:
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        gate.again("a")
        await gate.arrived("a")
        await gate.let_go("a")
        report = await task

    assert 1 == len(hidden)
    assert ["released", "completed"] == await kinds(app, "held", "a")
    assert 1 == report.total("released")


async def test_a_claim_that_nobody_was_told_of_is_released(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies before it can say what it claimed: its lease is replaced and dropped."""
    record_runs = supervisor.Supervisor._record_runs
    monkeypatch.setattr(supervisor.Supervisor, "_record_runs", lambda *_: None)
    await put(app, "held", "a")
    task = asyncio.create_task(run(app, queues=["held"], processes=1))
    pid = await gate.arrived("a")
    monkeypatch.setattr(supervisor.Supervisor, "_record_runs", record_runs)
    os.kill(pid, signal.SIGKILL)
    gate.again("a")
    await gate.arrived("a")
    await gate.let_go("a")
    await counted(app, "held", "completed")
    os.kill(os.getpid(), signal.SIGTERM)
    await task

    assert ["released", "completed"] == await kinds(app, "held", "a")


@pytest.mark.skipif(find_spec("uvloop") is None, reason="an extra")
async def test_processes_run_on_the_quick_loop_where_there_is_one(app: Dibs) -> None:
    await put(app, "loop_class", "a")
    async with working(app, "loop_class") as task:
        await task

    assert b'"uvloop"' == (await outcome(app, "loop_class", "a")).result
    assert "asyncio" in type(asyncio.get_running_loop()).__module__, "the application's loop is its own"


def test_without_it_they_run_on_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    kinds: list[str] = []

    async def work() -> None:
        kinds.append(type(asyncio.get_running_loop()).__module__)

    run_event_loop(work())

    assert ["asyncio.unix_events"] == kinds


async def test_a_job_that_kills_its_process_again_and_again_ends(app: Dibs) -> None:
    await put(app, "suicide", "a")
    async with working(app, "suicide") as task:
        report = await task

    failed = await outcome(app, "suicide", "a")
    assert ("failed", 2, 2) == (failed.kind, failed.stalls, report.crashes)


async def test_a_handler_that_holds_the_interpreter_costs_no_lease(app: Dibs, gate: Gate) -> None:
    await put(app, "gil", "a")
    async with working(app, "gil", lease=0.6, heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        await gate.let_go("a")
        before = (await current(app, "gil", "a")).run
        await asyncio.sleep(1.2)
        after = (await current(app, "gil", "a")).run

        assert before is not None
        assert before == after
        assert not task.done()
        os.kill(pid, signal.SIGKILL)
        await ends(pid)


@pytest.mark.chaos
async def test_a_minute_of_it_costs_nothing_to_others(app: Dibs, gate: Gate) -> None:
    """Neither its lease, nor the jobs of the other process, which all end meanwhile."""
    await put(app, "gil", request("a", 62_000_000, overrides=Overrides(timeout=None)))
    async with working(app, "gil", "naps", number=2, lease=10.0, heartbeat=0.5) as task:
        await gate.arrived("a")
        await gate.let_go("a")
        begun = asyncio.get_running_loop().time()
        rounds = 0
        while asyncio.get_running_loop().time() < begun + 60:
            await put(app, "naps", *[request(f"{rounds}-{id}", 0.01) for id in ids(50)])
            rounds += 1
            await counted(app, "naps", "completed", 50 * rounds)
        assert (await current(app, "gil", "a")).run is not None
        async with asyncio.timeout(PATIENCE):
            report = await task

    assert ["completed"] == await kinds(app, "gil", "a")
    assert (0, 0, 0) == (report.crashes, report.total("lost"), report.total("stalled"))


async def test_an_overrun_retires_its_process(app: Dibs, gate: Gate) -> None:
    await put(app, "overruns", "a")
    async with working(app, "overruns", "echo", heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        await ends(pid)
        await put(app, "echo", "b")
        await counted(app, "echo", "completed")
        await app.storage.cancel("overruns", ["a"])
        report = await task

    assert ["timed_out", "cancelled"] == await kinds(app, "overruns", "a")
    assert (1, 0, 0) == (report.overruns, report.crashes, report.total("stalled"))


async def test_a_run_elsewhere_can_be_cancelled(app: Dibs, gate: Gate) -> None:
    await put(app, "waits_for_cancel", "a")
    async with working(app, "waits_for_cancel", heartbeat=0.05) as task:
        await gate.arrived("a")
        await app.storage.cancel("waits_for_cancel", ["a"], running=True)
        await task

    assert "cancelled" == (await outcome(app, "waits_for_cancel", "a")).kind


async def test_a_lost_lease_ends_all_processes_at_once(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    async with working(app, "held", heartbeat=0.1) as task:
        pid = await gate.arrived("a")
        lease = (await current(app, "held", "a")).run
        assert lease is not None
        assert lease.lease is not None
        gate.again("a")
        await app.storage.drop(["held"], lease.lease, 1)
        await ends(pid)
        await gate.arrived("a")
        await gate.let_go("a")
        report = await task

    assert ["released", "completed"] == await kinds(app, "held", "a")
    assert 1 == report.total("lost")


async def test_a_call_that_is_cancelled_ends_its_processes(app: Dibs, gate: Gate) -> None:
    await put(app, "held", request("a", overrides=Overrides(timeout=None)))
    async with working(app, "held") as task:
        pid = await gate.arrived("a")
        task.cancel()
        await ends(pid)
        await asyncio.wait([task])

    assert 0 == (await current(app, "held", "a")).attempts


async def test_a_process_that_dies_while_it_retires_leaves_nothing_behind(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a")
    watched = Watched()
    async with working(app, "held", "overruns", lease=3600.0, heartbeat=1000.0, progress=watched) as task:
        pid = await gate.arrived("a")
        gate.again("a")
        await put(app, "overruns", "b")
        assert await gate.arrived("b") == pid
        await watched.until(lambda report: report.overruns == 1)
        os.kill(pid, signal.SIGKILL)
        await gate.arrived("a")
        await gate.let_go("a")
        await app.storage.cancel("overruns", ["b"])
        report = await task

    assert ["stalled", "completed"] == await kinds(app, "held", "a")
    assert (1, 1) == (report.overruns, report.crashes)


class TestAlone:
    """A process that a worker process has for one handler."""

    async def test_it_runs_the_handler(self, app: Dibs, gate: Gate) -> None:
        await put(app, "alone", "a")
        async with working(app, "alone") as task:
            pid = await gate.arrived("a")
            await gate.let_go("a")
            report = await task

        assert (await outcome(app, "alone", "a")).result == str(pid).encode()
        assert pid not in report.processes
