"""Timeouts: the run ends however its handler behaves, and other runs are not disturbed."""

from __future__ import annotations

import os
import signal

import pytest

from dibs.app import Dibs
from dibs.model.overrides import Overrides
from tests.worker.apps import CHILD_PROGRAM
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, outcome, put, request, wait_for_count
from tests.worker.supervisors import ProgressRecorder, working

#: A short timeout after which the job fails.
SOON = Overrides(timeout=300, max_timeouts=0)


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@pytest.mark.long
@pytest.mark.parametrize("queue", ["gil", "backtracking"])
async def test_a_handler_that_holds_the_gil_is_killed_by_the_supervisor(
    app: Dibs, gate: Gate, queue: str
) -> None:
    await put(app, queue, request("a", overrides=SOON))
    async with working(app, queue, "echo") as task:
        pid = await gate.arrived("a")
        await gate.release("a")
        await wait_for_exit(pid)
        await put(app, "echo", "b")
        report = await task

    failed = await outcome(app, queue, "a")
    assert ("failed", 1) == (failed.kind, failed.attempts)
    assert failed.error is not None
    assert "took longer than its timeout of 0.3 s" == failed.error.message
    assert (1, 0, 0) == (report.overruns, report.crashes, report.total("stalled"))
    assert "completed" == (await outcome(app, "echo", "b")).kind


@pytest.mark.long
async def test_other_runs_of_a_process_that_hangs_are_released(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "neighbour")
    async with working(app, "held", "gil") as task:
        pid = await gate.arrived("neighbour")
        gate.expect_again("neighbour")
        await put(app, "gil", request("a", overrides=SOON))
        assert await gate.arrived("a") == pid
        await gate.release("a")
        assert await gate.arrived("neighbour") != pid
        again = await current(app, "held", "neighbour")
        await gate.release("neighbour")
        await task

    assert (1, 0, 0) == (again.attempts, again.stalls, again.timeouts)
    assert ["released", "completed"] == await event_kinds(app, "held", "neighbour")


async def test_after_an_overrun_other_runs_finish_while_a_replacement_works(app: Dibs, gate: Gate) -> None:
    """The run that overran is active until its process has ended, so the job never runs twice at once."""
    watched = ProgressRecorder()
    await put(app, "held", "neighbour")
    async with working(app, "held", "overruns", "echo", progress=watched) as task:
        pid = await gate.arrived("neighbour")
        await put(app, "overruns", request("a", overrides=SOON))
        assert await gate.arrived("a") == pid
        await watched.until(lambda report: report.overruns == 1)
        await put(app, "echo", "b")
        await wait_for_count(app, "echo", "completed")
        still = (await current(app, "overruns", "a")).run
        await gate.release("neighbour")
        await wait_for_exit(pid)
        await task

    assert still is not None, "the run was settled while its handler was still running"
    assert ["completed"] == await event_kinds(app, "held", "neighbour")
    assert ["failed"] == await event_kinds(app, "overruns", "a")


@pytest.mark.long
async def test_after_an_overrun_other_runs_without_a_timeout_have_the_grace(app: Dibs, gate: Gate) -> None:
    await put(app, "held", request("neighbour", overrides=Overrides(timeout=None)))
    async with working(app, "held", "overruns", grace=0.5) as task:
        pid = await gate.arrived("neighbour")
        gate.expect_again("neighbour")
        await put(app, "overruns", request("a", overrides=SOON))
        await gate.arrived("a")
        await wait_for_exit(pid)
        await gate.arrived("neighbour")
        await gate.release("neighbour")
        await task

    assert ["released", "completed"] == await event_kinds(app, "held", "neighbour")
    assert ["failed"] == await event_kinds(app, "overruns", "a")


@pytest.mark.long
async def test_an_overrun_that_returns_before_its_process_ends_completes(app: Dibs, gate: Gate) -> None:
    watched = ProgressRecorder()
    await put(app, "held", "neighbour")
    async with working(app, "held", progress=watched) as task:
        await gate.arrived("neighbour")
        await put(app, "held", request("late", overrides=SOON))
        await gate.arrived("late")
        await watched.until(lambda report: report.overruns == 1)
        await gate.release("late")
        await wait_for_count(app, "held", "completed")
        await gate.release("neighbour")
        await task

    assert ["completed"] == await event_kinds(app, "held", "late")


@pytest.mark.long
async def test_an_async_handler_that_ignores_its_cancellation_overruns(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANCEL_SECONDS", "0.2")
    await put(app, "deaf", request("a", overrides=SOON))
    async with working(app, "deaf") as task:
        pid = await gate.arrived("a")
        await wait_for_exit(pid)
        report = await task

    assert ["failed"] == await event_kinds(app, "deaf", "a")
    assert 1 == report.overruns


@pytest.mark.long
@pytest.mark.parametrize("queue", ["parent", "parent_alone"])
async def test_programs_started_by_an_overrun_handler_are_killed(app: Dibs, gate: Gate, queue: str) -> None:
    await put(app, queue, request("a", overrides=SOON))
    async with working(app, queue) as task:
        child = await gate.arrived(CHILD_PROGRAM)
        await wait_for_exit(child)
        await task

    assert ["failed"] == await event_kinds(app, queue, "a")


async def test_programs_started_by_a_handler_that_dies_are_killed(app: Dibs, gate: Gate) -> None:
    await put(app, "parent", request("a", overrides=Overrides(max_stalls=0)))
    async with working(app, "parent", until="stopped"):
        child = await gate.arrived(CHILD_PROGRAM)
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        await wait_for_exit(child)
