"""Time is over: whatever a handler does, its run ends, and what has nothing to do with it goes on."""

from __future__ import annotations

import os
import signal

import pytest

from dibs.client.app import Dibs
from dibs.model.job import Overrides
from tests.worker.apps import CHILD
from tests.worker.fleet import Watched, working
from tests.worker.workshop import Gate, counted, current, ends, kinds, outcome, put, request

#: A timeout that ends a handler soon, and its job for good.
SOON = Overrides(timeout=300, max_timeouts=0)


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@pytest.mark.parametrize("queue", ["gil", "backtracking"])
async def test_a_handler_that_holds_the_interpreter_is_ended_from_outside(
    app: Dibs, gate: Gate, queue: str
) -> None:
    await put(app, queue, request("a", overrides=SOON))
    async with working(app, queue, "echo") as task:
        pid = await gate.arrived("a")
        await gate.let_go("a")
        await ends(pid)
        await put(app, "echo", "b")
        report = await task

    failed = await outcome(app, queue, "a")
    assert ("failed", 1) == (failed.kind, failed.attempts)
    assert failed.error is not None
    assert "took longer than its timeout of 0.3 s" == failed.error.message
    assert (1, 0, 0) == (report.overruns, report.crashes, report.total("stalled"))
    assert "completed" == (await outcome(app, "echo", "b")).kind


async def test_it_comes_back_as_timed_out(app: Dibs, gate: Gate) -> None:
    await put(app, "gil", request("a", overrides=Overrides(timeout=300)))
    async with working(app, "gil", until="stopped"):
        await gate.arrived("a")
        await gate.let_go("a")
        await counted(app, "gil", "scheduled")
        job = await current(app, "gil", "a")

    assert (1, 0, 0) == (job.timeouts, job.stalls, job.retries)
    assert ["timed_out"] == await kinds(app, "gil", "a")


async def test_neighbours_of_a_process_that_hangs_are_released_without_a_mark(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "neighbour")
    async with working(app, "held", "gil") as task:
        pid = await gate.arrived("neighbour")
        gate.again("neighbour")
        await put(app, "gil", request("a", overrides=SOON))
        assert await gate.arrived("a") == pid
        await gate.let_go("a")
        assert await gate.arrived("neighbour") != pid
        again = await current(app, "held", "neighbour")
        await gate.let_go("neighbour")
        await task

    assert (1, 0, 0) == (again.attempts, again.stalls, again.timeouts)
    assert ["released", "completed"] == await kinds(app, "held", "neighbour")


async def test_neighbours_of_an_overrun_finish_first_and_a_replacement_serves_at_once(
    app: Dibs, gate: Gate
) -> None:
    """And the run that overran is active until its process is gone: nothing runs beside it."""
    watched = Watched()
    await put(app, "held", "neighbour")
    async with working(app, "held", "overruns", "echo", progress=watched) as task:
        pid = await gate.arrived("neighbour")
        await put(app, "overruns", request("a", overrides=SOON))
        assert await gate.arrived("a") == pid
        await watched.until(lambda report: report.overruns == 1)
        await put(app, "echo", "b")
        await counted(app, "echo", "completed")
        still = (await current(app, "overruns", "a")).run
        await gate.let_go("neighbour")
        await ends(pid)
        await task

    assert still is not None, "settled while its handler was still running"
    assert ["completed"] == await kinds(app, "held", "neighbour")
    assert ["failed"] == await kinds(app, "overruns", "a")


async def test_neighbours_without_a_limit_have_the_grace(app: Dibs, gate: Gate) -> None:
    await put(app, "held", request("neighbour", overrides=Overrides(timeout=None)))
    async with working(app, "held", "overruns", grace=0.5) as task:
        pid = await gate.arrived("neighbour")
        gate.again("neighbour")
        await put(app, "overruns", request("a", overrides=SOON))
        await gate.arrived("a")
        await ends(pid)
        await gate.arrived("neighbour")
        await gate.let_go("neighbour")
        await task

    assert ["released", "completed"] == await kinds(app, "held", "neighbour")
    assert ["failed"] == await kinds(app, "overruns", "a")


async def test_what_finishes_late_while_others_finish_counts(app: Dibs, gate: Gate) -> None:
    watched = Watched()
    await put(app, "held", "neighbour")
    async with working(app, "held", progress=watched) as task:
        await gate.arrived("neighbour")
        await put(app, "held", request("late", overrides=SOON))
        await gate.arrived("late")
        await watched.until(lambda report: report.overruns == 1)
        await gate.let_go("late")
        await counted(app, "held", "completed")
        await gate.let_go("neighbour")
        await task

    assert ["completed"] == await kinds(app, "held", "late")


async def test_an_async_handler_that_swallows_its_cancellation_is_overrun(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANCEL_SECONDS", "0.2")
    await put(app, "deaf", request("a", overrides=SOON))
    async with working(app, "deaf") as task:
        pid = await gate.arrived("a")
        await ends(pid)
        report = await task

    assert ["failed"] == await kinds(app, "deaf", "a")
    assert 1 == report.overruns


@pytest.mark.parametrize("queue", ["parent", "parent_alone"])
async def test_what_an_overrun_had_started_ends_with_it(app: Dibs, gate: Gate, queue: str) -> None:
    await put(app, queue, request("a", overrides=SOON))
    async with working(app, queue) as task:
        child = await gate.arrived(CHILD)
        await ends(child)
        await task

    assert ["failed"] == await kinds(app, queue, "a")


async def test_what_a_handler_that_dies_had_started_ends_with_it(app: Dibs, gate: Gate) -> None:
    await put(app, "parent", request("a", overrides=Overrides(max_stalls=0)))
    async with working(app, "parent", until="stopped"):
        child = await gate.arrived(CHILD)
        os.kill(await gate.arrived("a"), signal.SIGKILL)
        await ends(child)
