"""A report of progress ends the waits for progress, and no other wait, in memory and in files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, SettingsPatch, Settlement
from dibs.storage.file.storage import FileStorage
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Watch

Storage = MemoryStorage | FileStorage


@pytest.fixture(params=["memory", "file", "two processes"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Storage, Storage]]:
    """Return the storage on which calls wait, and the one that reports: one object, or two on one folder."""
    first = MemoryStorage() if request.param == "memory" else FileStorage(str(tmp_path / "q"), poll=0.05)
    async with first:
        if request.param != "two processes":
            yield first, first
            return
        async with FileStorage(str(tmp_path / "q"), poll=0.05) as second:
            yield first, second


async def run(storage: Storage, *ids: str) -> dict[str, Job]:
    """Enqueue and claim jobs. Each has a key that is full, for which one more job waits."""
    await storage.configure("q", SettingsPatch(max_active=9, per_key=1))
    for id in ids:
        jobs = [NewJob(id=name, data=JobData(key=id)) for name in (id, f"{id} waits")]
        await storage.enqueue("q", [EnqueueRequest(job=job) for job in jobs])
    lease = (await storage.grant(["q"], 100_000, "h")).lease
    return {job.id: job for job in (await storage.claim("q", lease, 9)).jobs}


async def report(storage: Storage, job: Job, progress: bytes | None = b"1", memo: bytes | None = None) -> str:
    assert job.run is not None
    return await storage.report("q", job.id, job.run.fence, progress, memo)


async def wait(storage: Storage, watch: Watch = "progress", *ids: str, **rest: Any) -> Any:
    return await storage.wait(["q"], for_=watch, ids=ids, **{"timeout": 60, **rest})


async def begin(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a wait, and return its task once it waits."""
    task = asyncio.create_task(work)
    await asyncio.sleep(0.15)
    assert not task.done()
    return task


async def test_a_report_ends_the_wait_of_its_id_and_of_its_queue(pair: tuple[Storage, Storage]) -> None:
    waiting, reporting = pair
    jobs = await run(waiting, "a", "b")
    of_queue = await begin(wait(waiting))
    of_b = await begin(wait(waiting, "progress", "b"))
    await report(reporting, jobs["a"])

    assert (await of_queue).reported in ({"a"}, None)
    assert not of_b.done()
    await report(reporting, jobs["b"])
    assert (await of_b).reported in ({"b"}, None)


@pytest.mark.parametrize("watch", ["work", "events", "ids"])
async def test_a_report_ends_no_other_wait(pair: tuple[Storage, Storage], watch: Watch) -> None:
    """The queue has `max_active` and `per_key`, whose room a report does not change."""
    waiting, reporting = pair
    jobs = await run(waiting, "a")
    since = (await wait(waiting, watch, "a", timeout=0)).since
    await report(reporting, jobs["a"], b"1", b"memo")

    assert not (await wait(waiting, watch, "a", timeout=0.2, since=since)).woken


async def test_a_memo_alone_and_a_late_holder_end_no_wait(pair: tuple[Storage, Storage]) -> None:
    waiting, reporting = pair
    jobs = await run(waiting, "a")
    since = (await wait(waiting, timeout=0)).since
    await report(reporting, jobs["a"], None, b"memo")
    assert "lost" == await reporting.report("q", "a", 1, b"1")

    assert not (await wait(waiting, timeout=0.2, since=since)).woken


async def test_a_wait_with_a_token_from_before_ends_at_once(pair: tuple[Storage, Storage]) -> None:
    waiting, reporting = pair
    jobs = await run(waiting, "a", "b")
    since = (await wait(waiting, timeout=0)).since
    await report(reporting, jobs["a"])
    answer = await wait(waiting, since=since)

    assert answer.woken
    assert answer.reported == {"a"}
    assert not (await wait(waiting, "progress", "b", since=since, timeout=0.1)).woken
    assert not (await wait(waiting, since=answer.since, timeout=0.1)).woken


async def test_a_wait_for_progress_ends_with_its_run(pair: tuple[Storage, Storage]) -> None:
    waiting, reporting = pair
    jobs = await run(waiting, "a")
    task = await begin(wait(waiting, "progress", "a"))
    since = (await wait(waiting, timeout=0)).since
    run_of_a = jobs["a"].run
    assert run_of_a is not None
    await reporting.settle("q", [Settlement(id="a", fence=run_of_a.fence, action=Complete())])

    assert (await task).woken
    assert (await wait(waiting, "progress", "a", since=since)).woken
