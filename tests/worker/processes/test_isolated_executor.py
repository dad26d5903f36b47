"""Handlers with executor="process", on a storage that only the process of the worker can open."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from dibs.app import Dibs
from dibs.model.overrides import Overrides
from dibs.worker import run
from dibs.worker.processes import isolated_executor
from tests.worker.apps import app_without_url, double, isolated_app
from tests.worker.faulty_storage import faulty_storage
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import current, event_kinds, outcome, put, request, wait_for_count


@pytest.fixture
async def app(gate: Gate) -> AsyncIterator[Dibs]:
    async with isolated_app as opened:
        yield opened


async def test_each_run_has_its_own_process(app: Dibs, gate: Gate) -> None:
    await put(app, "held", "a", "b")
    working = asyncio.create_task(run(app, queues=["held"], until="empty"))
    pids = {await gate.arrived("a"), await gate.arrived("b")}
    await gate.release("a", "b")
    await working

    assert 3 == len(pids | {os.getpid()})
    assert {int((await outcome(app, "held", id)).result or b"") for id in "ab"} == pids


async def test_a_process_writes_output_before_its_run_is_settled(app: Dibs) -> None:
    await put(app, "writes", "a")
    await run(app, queues=["writes"], until="empty")

    written = [chunk.value async for chunk in app.queue("writes").output("a")]
    assert ["first", "last"] == written


async def test_a_process_writes_its_log_records_before_its_run_is_settled(app: Dibs) -> None:
    await put(app, "logs", "a")
    await run(app, queues=["logs"], until="empty")

    written = [(chunk.kind, chunk.value["message"]) async for chunk in app.queue("logs").output("a")]
    assert [("log", "first"), ("log", "last")] == written


async def test_a_process_starts_before_the_first_claim(app: Dibs, gate: Gate) -> None:
    async with faulty_storage(app) as storage:
        working = asyncio.create_task(run(app, queues=["held"], handle_signals=False))
        await storage.until(lambda: "claim" in storage.calls)
        pids = {child.pid for child in psutil.Process().children(recursive=True)}
        await put(app, "held", "a")
        pid = await gate.arrived("a")
        await gate.release("a")
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    assert pid in pids


async def test_the_class_of_an_error_decides_in_a_process_of_its_own(app: Dibs) -> None:
    await put(app, "rejects", "a")
    await run(app, queues=["rejects"], until="empty")

    ended = await outcome(app, "rejects", "a")
    assert ("permanent", 0) == (ended.error and ended.error.kind, ended.retries)


async def test_a_process_is_used_again(app: Dibs) -> None:
    await put(app, "resources", "c", "d")
    await run(app, queues=["resources"], until="empty")
    pids = [json.loads((await outcome(app, "resources", id)).result or b"") for id in "cd"]

    assert all(pid != [os.getpid()] for pid in pids)


async def test_a_process_starts_after_another_handler_removed_the_working_directory(
    app: Dibs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The working directory belongs to the whole worker, and a handler beside it may have changed it."""
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    await put(app, "resources", "c")
    await run(app, queues=["resources"], until="empty")

    assert "completed" in await event_kinds(app, "resources", "c")


async def test_a_run_in_a_process_says_what_it_has_spent(app: Dibs) -> None:
    """Without the refund, the second job would start in an hour."""
    await app.queue("spends").configure(rate="1/h")
    await put(app, "spends", "a", "b")
    await run(app, queues=["spends"], until="empty")

    assert ["completed"] == await event_kinds(app, "spends", "b")


async def test_a_handler_may_set_signals_and_leaves_none_to_the_next_run(app: Dibs) -> None:
    await put(app, "alarmed", "a", "b")
    await run(app, queues=["alarmed"], until="empty")
    first, second = [json.loads((await outcome(app, "alarmed", id)).result or b"") for id in "ab"]

    assert [True, 0.0] == first[:2]
    assert first == second


async def test_arguments_and_results_are_passed_between_processes(app: Dibs) -> None:
    await put(app, "echo", request("e", {"x": [1, None]}, "é"))
    await run(app, queues=["echo"], until="empty")

    assert [{"x": [1, None]}, "é"] == json.loads((await outcome(app, "echo", "e")).result or b"")


async def test_a_process_that_dies_is_a_stall(app: Dibs) -> None:
    await put(app, "suicide", "f")
    await run(app, queues=["suicide"], until="empty")

    failed = await outcome(app, "suicide", "f")
    assert ["stalled", "stalled", "failed"] == await event_kinds(app, "suicide", "f")
    assert failed.error is not None
    assert "was killed by SIGKILL" in failed.error.message


async def test_a_handler_that_overruns_is_killed_with_its_process(app: Dibs, gate: Gate) -> None:
    await put(app, "overruns", request("g", overrides=Overrides(max_timeouts=0)))
    working = asyncio.create_task(run(app, queues=["overruns"], until="empty"))
    pid = await gate.arrived("g")
    report = await working

    assert ("failed", 0) == ((await outcome(app, "overruns", "g")).kind, report.overruns)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_a_run_can_be_cancelled(app: Dibs, gate: Gate) -> None:
    await put(app, "waits_for_cancel", "h")
    working = asyncio.create_task(run(app, queues=["waits_for_cancel"], until="empty", heartbeat=0.05))
    await gate.arrived("h")
    await app.storage.cancel("waits_for_cancel", ["h"], running=True)
    await working

    assert "cancelled" == (await outcome(app, "waits_for_cancel", "h")).kind


async def test_a_run_that_ignores_its_cancellation_is_killed(
    app: Dibs, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_executor, "CANCEL_GRACE", 0.2)
    await put(app, "slow_to_cancel", "i")
    working = asyncio.create_task(run(app, queues=["slow_to_cancel"], until="empty", heartbeat=0.05))
    pid = await gate.arrived("i")
    await gate.release("i")
    await app.storage.cancel("slow_to_cancel", ["i"], running=True)
    await gate.arrived("cancelled")
    await wait_for_exit(pid)
    await working

    assert "cancelled" == (await outcome(app, "slow_to_cancel", "i")).kind


async def test_enqueueing_into_an_unreachable_storage_raises(app: Dibs) -> None:
    await put(app, "enqueues", "k")
    await run(app, queues=["enqueues"], until="empty")

    failed = await outcome(app, "enqueues", "k")
    assert failed.error is not None
    assert "dibs.errors.NotRunning" == failed.error.type
    assert "current_job().then(...)" in failed.error.message


async def test_an_app_without_a_url_may_use_a_shared_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child process does not need a URL of the app."""
    monkeypatch.delenv("DIBS_URL", raising=False)
    async with app_without_url.using(f"file:{tmp_path}/jobs"):
        ticket = await double.enqueue(4)
        await app_without_url.work(until="empty")

        assert 8 == await ticket.result(wait=0)


async def test_a_snooze_reaches_the_worker(app: Dibs) -> None:
    await put(app, "snoozes", "a")
    working = asyncio.create_task(run(app, queues=["snoozes"], handle_signals=False))
    await wait_for_count(app, "snoozes", "scheduled")
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)

    job = await current(app, "snoozes", "a")
    assert (0, 0) == (job.attempts, job.retries)


@pytest.mark.parametrize("queue", ["steps", "steps_blocking"])
async def test_steps_are_stored_through_the_worker(app: Dibs, queue: str) -> None:
    await put(app, queue, "a")
    await run(app, queues=[queue], until="empty")

    *steps, last, key = json.loads((await outcome(app, queue, "a")).result or b"")
    assert 3 == len(steps)
    assert {steps[0]} == set(steps), "the second run got the results of the first"
    assert last != steps[0]
    assert 32 == len(key)


async def test_a_hand_off_reaches_the_worker(app: Dibs) -> None:
    await put(app, "hands_off", "a")
    report = await run(app, queues=["hands_off"], until="empty")

    revision = (await current(app, "hands_off", "a")).revision
    assert 1 == report.queue("hands_off").handed_off
    assert "done" == await app.queue("hands_off").finish("a", revision, "elsewhere")
    assert b'"elsewhere"' == (await outcome(app, "hands_off", "a")).result
