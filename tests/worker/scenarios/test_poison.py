"""Handlers that take their process with them: settled at once, with the reason, and all else goes on."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from dibs.client.app import Dibs
from dibs.model.job import Overrides
from dibs.model.retry import Immediate
from tests.worker.fleet import Watched, everywhere, working
from tests.worker.workshop import Gate, counted, current, ids, outcome, put, request

#: A lease that is over long after the test: what comes back did not wait for it.
SLOW: dict[str, Any] = {"lease": 3600.0, "heartbeat": 1000.0}
ONCE = Overrides(max_stalls=0, backoff=Immediate())
POISONS = {"exit": "exited with code 7", "segfault": "was killed by SIGSEGV"}
# Later interpreters count their C frames, and raise.
if sys.version_info < (3, 12):
    POISONS["recursion"] = "was killed by SIGSEGV"


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@pytest.mark.parametrize(("how", "reason"), POISONS.items(), ids=POISONS)
async def test_it_is_a_stall_with_the_reason(app: Dibs, how: str, reason: str) -> None:
    await put(app, "poison", request("a", how))
    async with working(app, "poison", until="stopped", **SLOW):
        await counted(app, "poison", "scheduled")
        job = await current(app, "poison", "a")

    assert (1, 0, 0) == (job.stalls, job.retries, job.timeouts)
    assert job.error is not None
    assert f"{reason} while it ran this" in job.error.message
    assert job.run_at > job.enqueued_at + 3_000_000, "with its backoff"


async def test_a_memory_limit_is_an_error_of_the_run(app: Dibs) -> None:
    """The interpreter raises; where it cannot, the process dies, and that is a stall."""
    await put(app, "poison", request("a", "memory"))
    async with working(app, "poison", until="stopped", **SLOW):
        await counted(app, "poison", "scheduled")
        job = await current(app, "poison", "a")

    assert job.error is not None
    assert (job.error.type, job.retries, job.stalls) in [("MemoryError", 1, 0), ("ProcessDied", 0, 1)]


@everywhere
async def test_its_limit_ends_it_in_the_failure_handler(app: Dibs) -> None:
    await put(app, "poison", request("a", "exit", overrides=Overrides(max_stalls=1, backoff=Immediate())))
    async with working(app, "poison", **SLOW) as task:
        report = await task

    failed = await outcome(app, "poison", "a")
    assert failed.error is not None
    assert ("failed", 2, "TooManyStalls") == (failed.kind, failed.stalls, failed.error.type)
    assert "exited with code 7" in failed.error.message
    assert (2, 1) == (report.crashes, report.queue("poison!fail").completed)


async def test_others_all_end_while_it_kills_again_and_again(app: Dibs) -> None:
    watched = Watched()
    often = Overrides(max_stalls=4, backoff=Immediate())
    await put(app, "poison", request("a", "exit", overrides=often))
    await put(app, "naps", *[request(id, 0.01) for id in ids(200)])
    async with working(app, "poison", "naps", number=2, progress=watched, **SLOW) as task:
        report = await task

    assert 5 == report.crashes
    assert 200 == (await app.storage.counts(["naps"]))["naps"].completed


async def test_a_process_that_keeps_dying_is_said_aloud_and_its_place_filled(
    app: Dibs, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    await put(app, "poison", *[request(id, "exit", overrides=ONCE) for id in ids(3)])
    async with working(app, "poison", "held") as task:
        await put(app, "held", "b")
        await gate.arrived("b")
        await gate.let_go("b")
        await task

    assert "completed" == (await outcome(app, "held", "b")).kind
    assert 3 == caplog.text.count("exited with code 7; the runs it had started are stalled")
