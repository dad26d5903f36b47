"""Waits for progress: the ids in the messages, and the messages that end no wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from dibs.model.job import ActiveRun, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import WaitResult
from dibs.storage.redis import RedisStorage
from tests.storage.exchange import PATIENCE

#: Seconds of a wait that no message ends.
SHORT = 0.05


@pytest.fixture
async def runs(storage: RedisStorage) -> Mapping[str, ActiveRun]:
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in "ab"])
    lease = (await storage.grant(["q"], 600_000, "worker")).lease
    jobs = (await storage.claim("q", lease, 2)).jobs
    return {job.id: job.run for job in jobs if job.run is not None}


async def wait(
    storage: RedisStorage, ids: str, since: Mapping[str, str] | None = None, timeout: float = PATIENCE
) -> WaitResult:
    return await storage.wait(["q"], for_="progress", ids=[*ids], since=since, timeout=timeout)


async def token(storage: RedisStorage, ids: str) -> Mapping[str, str]:
    """Return the token of a subscribed wait: the first one may end early, because it may miss messages."""
    return (await wait(storage, ids, timeout=0)).since


@pytest.mark.parametrize("ids", ["a", "ab", ""])
async def test_a_report_ends_a_wait_and_is_named(
    ids: str, storage: RedisStorage, runs: Mapping[str, ActiveRun]
) -> None:
    since = await token(storage, ids)
    waiting = asyncio.create_task(wait(storage, ids, since))
    await asyncio.sleep(SHORT)
    await storage.report("q", "a", runs["a"].fence, b"1")
    woken = await waiting

    assert woken.woken
    assert woken.reported is None or {"a"} == woken.reported


async def test_a_report_before_the_wait_and_after_its_token_ends_it(
    storage: RedisStorage, runs: Mapping[str, ActiveRun]
) -> None:
    since = await token(storage, "a")
    await storage.report("q", "a", runs["a"].fence, b"1")
    first = await wait(storage, "a", since)
    second = await wait(storage, "a", first.since, timeout=SHORT)

    assert [True, False] == [first.woken, second.woken]


async def test_the_end_of_an_awaited_run_ends_the_wait(
    storage: RedisStorage, runs: Mapping[str, ActiveRun]
) -> None:
    since = await token(storage, "a")
    await storage.settle("q", [Settlement(id="a", fence=runs["a"].fence, action=Complete())])

    assert (await wait(storage, "a", since)).woken


async def test_a_memo_and_a_late_report_and_other_ids_end_no_wait(
    storage: RedisStorage, runs: Mapping[str, ActiveRun]
) -> None:
    since = await token(storage, "a")
    waiting = asyncio.create_task(wait(storage, "a", since, timeout=4 * SHORT))
    await asyncio.sleep(SHORT)
    await storage.report("q", "a", runs["a"].fence, memo=b"memo")
    await storage.report("q", "a", runs["a"].fence - 1, b"1")
    await storage.report("q", "b", runs["b"].fence, b"1")

    assert not (await waiting).woken


@pytest.mark.parametrize("watch", ["work", "events", "ids"])
async def test_a_report_ends_no_other_wait(
    watch: str, storage: RedisStorage, runs: Mapping[str, ActiveRun]
) -> None:
    named = ["a"] if watch == "ids" else []
    first = await storage.wait(["q"], for_=watch, ids=named, timeout=0)  # type: ignore[arg-type]
    waiting = asyncio.create_task(
        storage.wait(["q"], for_=watch, ids=named, since=first.since, timeout=4 * SHORT)  # type: ignore[arg-type]
    )
    await asyncio.sleep(SHORT)
    await storage.report("q", "a", runs["a"].fence, b"1")

    assert not (await waiting).woken
