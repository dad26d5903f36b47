"""Handlers that kill their process: the run is settled at once, with the reason, and other jobs run."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dibs.app import Dibs
from dibs.model.overrides import Overrides
from dibs.model.retry import Immediate
from tests.worker.gate import Gate
from tests.worker.jobs import current, ids, outcome, put, request, wait_for_count
from tests.worker.supervisors import ProgressRecorder, on_all_storages, working

#: A lease that outlasts the test: a job that is retried has not waited for the end of the lease.
SLOW: dict[str, Any] = {"lease": 3600.0, "heartbeat": 1000.0}
ONCE = Overrides(max_stalls=0, backoff=Immediate())
POISONS = {"exit": "exited with code 7", "segfault": "was killed by SIGSEGV"}
# Python 3.12 and later count C frames and raise RecursionError.
if sys.version_info < (3, 12):
    POISONS["recursion"] = "was killed by SIGSEGV"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


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
