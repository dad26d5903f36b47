"""The time before a handler with executor="process" begins: its process starts, waits idle, or dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.client.work_report import StopRequest, StopRequests
from dibs.model.job import Outcome
from dibs.model.run_outcome import NotEntered, Returned
from dibs.worker import run
from dibs.worker.execution.invocation import Invocation
from dibs.worker.processes import isolated_executor
from dibs.worker.processes.child_main import ProcessSpec, encode_spec
from dibs.worker.processes.isolated_executor import IsolatedExecutor
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, outcome, put
from tests.worker.starting_app import REFERENCE, new_app


@pytest.fixture
async def app(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dibs]:
    monkeypatch.setenv("START_FAULT", str(tmp_path / "fault"))
    async with new_app("memory:") as opened:
        yield opened


@asynccontextmanager
async def with_busy_process(app: Dibs, gate: Gate) -> AsyncIterator[None]:
    """Work, with a job in the first process: the next job has to start another process."""
    await put(app, "held", "busy")
    working = asyncio.create_task(run(app, queues=["held", "quick"], reference=REFERENCE, until="empty"))
    await gate.arrived("busy")
    try:
        yield
    finally:
        await gate.release("busy")
        await working


async def start_with_fault(app: Dibs, fault: str) -> Outcome:
    """Return the outcome of a job for which a process with a fault is started."""
    Path(os.environ["START_FAULT"]).write_text(fault)
    await put(app, "quick", "a")
    return await ended(app, "a")


async def ended(app: Dibs, id: str) -> Outcome:
    """Wait until a job of the queue "quick" has an outcome."""
    since = None
    async with asyncio.timeout(60):
        while (await app.storage.get("quick", [id]))[0].outcome is None:
            since = (await app.storage.wait(["quick"], for_="events", since=since, timeout=0.2)).since
    return await outcome(app, "quick", id)


@pytest.mark.long
async def test_the_start_of_a_process_does_not_count_towards_the_timeout(app: Dibs, gate: Gate) -> None:
    async with with_busy_process(app, gate):
        end = await start_with_fault(app, "slow")

    assert ("completed", None) == (end.kind, end.error)


async def test_the_start_of_a_process_has_a_limit_of_its_own(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with with_busy_process(app, gate):
        monkeypatch.setattr(isolated_executor, "START_TIMEOUT", 0.5)
        end = await start_with_fault(app, "hangs")

    assert end.error is not None
    assert ("StartTimeout", "error") == (end.error.type, end.error.kind)
    assert "did not begin within 0.5 s" in end.error.message


@pytest.mark.long
async def test_a_process_that_is_killed_while_it_starts_costs_nothing(app: Dibs, gate: Gate) -> None:
    async with with_busy_process(app, gate):
        end = await start_with_fault(app, "killed")

    assert "completed" == end.kind
    assert ["released", "completed"] == await event_kinds(app, "quick", "a")


async def test_a_worker_stops_although_a_process_does_not_start(app: Dibs, gate: Gate) -> None:
    """A stop ends the start of a process, and releases its job."""
    await put(app, "held", "busy")
    stop = StopRequests()
    working = asyncio.create_task(
        run(app, queues=["held", "quick"], reference=REFERENCE, grace=0.1, stop_requests=stop)
    )
    await gate.arrived("busy")
    Path(os.environ["START_FAULT"]).write_text("hangs")
    await put(app, "quick", "a")
    while Path(os.environ["START_FAULT"]).exists():  # noqa: ASYNC110 - another process removes the file
        await asyncio.sleep(0.02)
    stop.put(StopRequest())
    async with asyncio.timeout(20):
        await working

    assert (0, None) == ((job := await current(app, "quick", "a")).attempts, job.run)


async def test_an_idle_process_that_died_is_not_used(app: Dibs) -> None:
    stop = StopRequests()
    working = asyncio.create_task(run(app, queues=["quick"], reference=REFERENCE, stop_requests=stop))
    await put(app, "quick", "a")
    first = int((await ended(app, "a")).result or b"")
    os.kill(first, signal.SIGKILL)
    await wait_for_exit(first)
    await put(app, "quick", "b")
    end = await ended(app, "b")
    stop.put(StopRequest())
    await working

    assert "completed" == end.kind
    assert first != int(end.result or b"")


async def test_a_run_whose_idle_process_has_just_died_is_released(app: Dibs) -> None:
    """The worker has not noticed the death yet when it sends the job to the process."""
    executor = IsolatedExecutor(app.storage, {"quick": SPEC})
    first, second = await claimed_runs(app, "a", "b")
    entered: list[str] = []
    returned = await executor.run(first, lambda: entered.append("a"))
    assert isinstance(returned, Returned)
    pid = int(returned.result)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # noqa: ASYNC222 - the event loop must not see it
    verdict = await executor.run(second, lambda: entered.append("b"))
    await executor.close()

    assert isinstance(verdict, NotEntered)
    assert ["a"] == entered


SPEC = encode_spec(ProcessSpec(app=REFERENCE, queues=("quick",), parent=os.getpid(), shared=False))


async def claimed_runs(app: Dibs, *ids: str) -> list[Invocation]:
    await put(app, "quick", *ids)
    lease = (await app.storage.grant(["quick"], 60_000, "test")).lease
    jobs = (await app.storage.claim("quick", lease, len(ids))).jobs
    return [Invocation(app.handlers["quick"], job, index) for index, job in enumerate(jobs)]
