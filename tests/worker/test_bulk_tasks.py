"""Bulk tasks: one call of a function for many jobs, each of which keeps its own end."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import PIPE

import pytest

from dibs import BadHandler, Dibs, JobCancelled, JobFailed, NotRunning, Refused, current_jobs
from tests.source import PROJECT
from tests.worker import bulk_app
from tests.worker.bulk_app import app


@pytest.fixture(autouse=True)
async def _fresh() -> AsyncIterator[None]:
    bulk_app.calls.clear()
    bulk_app.began.clear()
    bulk_app.ended.clear()
    async with app.using("memory:"):
        yield


async def work() -> None:
    await app.work(until="empty", handle_signals=False)


async def test_waiting_jobs_come_in_full_calls() -> None:
    tickets = [await bulk_app.shout.enqueue(f"word {n}") for n in range(25)]
    await work()

    assert ["WORD 0", "WORD 24"] == [await tickets[0].result(), await tickets[24].result()]
    assert [5, 10, 10] == sorted(map(len, bulk_app.calls))
    assert {f"word {n}" for n in range(25)} == {word for call in bulk_app.calls for word in call}


async def test_a_def_function_may_return_none() -> None:
    tickets = [await bulk_app.count.enqueue(word) for word in "abc"]
    await work()

    assert {"completed"} == {(await ticket.status()).state for ticket in tickets}
    assert [["a", "b", "c"]] == bulk_app.calls


async def test_each_failed_job_is_retried_alone() -> None:
    good, bad, late = [await bulk_app.judge.enqueue(word) for word in ("good", "bad", "late")]
    await work()

    assert [["good", "bad", "late"], ["bad"]] == bulk_app.calls
    assert ["GOOD", "LATE"] == [await good.result(), await late.result()]
    with pytest.raises(JobFailed, match="bad is bad"):
        await bad.result()


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("short", "break_all got 2 jobs and returned 1 results; return a list with one result for each"),
        ("index", "BulkFailed names the job 7 of a call with 2; the first one is 0"),
        ("text", "BulkFailed names the job 'a' of a call with 2; the first one is 0"),
        ("no error", "BulkFailed has 'nobody' as an error; give an exception"),
        ("stop", "StopIteration|all of them"),
        ("exit", "all of them"),
    ],
)
async def test_another_error_is_that_of_each_job(first: str, why: str) -> None:
    tickets = [await bulk_app.break_all.enqueue(word) for word in (first, "other")]
    await work()

    for ticket in tickets:
        with pytest.raises(JobFailed, match=why):
            await ticket.result()


async def test_a_call_knows_its_jobs() -> None:
    tickets = [await bulk_app.look.options(id=id).enqueue("word") for id in "ab"]
    await work()

    assert ["a", "b"] == [await ticket.result() for ticket in tickets]
    status = await bulk_app.look.queue.get("b")
    assert status is not None
    assert {"of": 2} == status.progress
    with pytest.raises(NotRunning, match="no bulk task is running here"):
        current_jobs()


async def test_a_direct_call_has_one_item() -> None:
    assert "A" == await bulk_app.shout("a")


async def test_a_run_beyond_its_timeout_waits_for_the_thread_that_has_its_item() -> None:
    """Otherwise the next run of the job could begin beside it."""
    ticket = await bulk_app.hold.enqueue("a")
    await work()

    with pytest.raises(JobFailed):
        await ticket.result()
    assert bulk_app.ended.is_set()


async def test_a_cancelled_job_leaves_the_others_of_its_call_alone() -> None:
    tickets = [await bulk_app.sleep.options(id=word).enqueue(word) for word in "ab"]
    worker = asyncio.create_task(app.work(until="empty", handle_signals=False, heartbeat=0.2))
    assert await asyncio.to_thread(bulk_app.began.wait, 30)
    await bulk_app.sleep.queue.cancel("a", running=True)
    await worker

    with pytest.raises(JobCancelled):
        await tickets[0].result()
    assert "b" == await tickets[1].result()
    assert [["a", "b"]] == bulk_app.calls


async def test_a_call_is_cancelled_when_all_its_jobs_are() -> None:
    for word in ("long", "b"):
        await bulk_app.sleep.options(id=word).enqueue(word)
    worker = asyncio.create_task(app.work(until="empty", handle_signals=False, heartbeat=0.2))
    assert await asyncio.to_thread(bulk_app.began.wait, 30)
    await bulk_app.sleep.queue.cancel_many(["long", "b"], running=True)
    await worker

    assert bulk_app.ended.is_set()
    assert 2 == (await bulk_app.sleep.queue.counts()).cancelled


def test_after_a_death_each_job_is_called_alone(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        environ = {**os.environ, "PYTHONPATH": str(PROJECT)}
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path, env=environ, stdout=PIPE, text=True, check=True).stdout

    words = "good", "poison", "fine"
    run("-c", f"from tests.worker.bulk_app import die; [die.sync.enqueue(word) for word in {words}]")
    run("-m", "dibs", "worker", "tests.worker.bulk_app:app", "--processes", "1", "--until", "empty")
    counts = json.loads(run("-m", "dibs", "counts", "--url", "file:./jobs", "--json"))
    first, *rest = (tmp_path / "calls.txt").read_text().splitlines()

    assert "fine good poison" == first
    assert ["fine", "good", "poison"] == sorted(rest)
    assert (2, 1) == tuple(
        counts["queues"]["tests.worker.bulk_app.die"][state] for state in ("completed", "failed")
    )


def no_list(word: str) -> None: ...


def two_lists(words: list[str], more: list[str]) -> None: ...


def one_text(words: list[str]) -> str:
    return words[0]


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (no_list, "no_list must take one list, with the type of its items"),
        (two_lists, "two_lists must take one list"),
        (one_text, "one_text must return a list with one result for each job, or None"),
    ],
)
def test_a_function_that_takes_no_list_is_refused(function: object, why: str) -> None:
    with pytest.raises(BadHandler, match=why):
        Dibs("memory:").bulk_task()(function)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"most": 0}, "most"),
        ({"most": 101}, "most"),
        ({"most": 50, "size": 3}, "most"),
        ({"wait": 61}, "wait"),
    ],
)
def test_bad_options_are_refused(options: dict[str, int], field: str) -> None:
    with pytest.raises(Refused) as refused:
        Dibs("memory:").bulk_task(**options)(bulk_app.shout.function)  # type: ignore[arg-type]

    assert field == refused.value.field


def test_a_process_for_each_job_is_refused() -> None:
    with pytest.raises(BadHandler, match="leave out executor"):
        Dibs("memory:").bulk_task(executor="process")
