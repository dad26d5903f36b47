"""start_settle_and_claim() has the effect of settle_and_claim(), or sends nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dibs import Dibs
from dibs.errors import StorageError
from dibs.model.job import Job, JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, FollowUp, Settlement
from dibs.model.results import SettleAndClaimResult
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.direct_settle import RedisDirectSettle
from dibs_conformance.servers import RedisServer

#: The argument for which the handler flushes the scripts.
FLUSHING = 2


def requests(*ids: str) -> list[EnqueueRequest]:
    return [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=b"1"))) for id in ids]


async def claimed(storage: RedisStorage, *ids: str) -> tuple[str, Job]:
    """Enqueue jobs, and return a lease and the first of them as a run under it."""
    lease = (await storage.grant(["q"], 60_000, "test")).lease
    await storage.enqueue("q", requests(*ids))
    # By this verb, so that the server has its script.
    (job,) = (await storage.settle_and_claim("q", [], lease, 1)).claim.jobs
    return lease, job


def completion(job: Job, **fields: Any) -> list[Settlement]:
    assert job.run is not None
    return [Settlement(id=job.id, fence=job.run.fence, action=Complete(**fields))]


def unexpected(result: object) -> None:
    pytest.fail(f"nothing was sent, but it ended with {result!r}")


async def start(
    storage: RedisStorage, settlements: list[Settlement], lease: str, limit: int
) -> SettleAndClaimResult | Exception | None:
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    assert storage.start_settle_and_claim("q", settlements, lease, limit, ended.set_result)
    async with asyncio.timeout(20):
        result: SettleAndClaimResult | Exception | None = await ended
    return result


async def test_it_settles_one_run_and_claims_the_next(storage: RedisStorage) -> None:
    lease, job = await claimed(storage, "a", "b", "c")
    result = await start(storage, completion(job, result=b"7"), lease, 2)

    assert isinstance(result, SettleAndClaimResult)
    assert ["done"] == [one.status for one in result.settled]
    assert ["b", "c"] == [one.id for one in result.claim.jobs]
    (slot,) = await storage.get("q", ["a"])
    assert slot.outcome is not None
    assert slot.outcome.result == b"7"


async def test_a_claim_of_more_than_one_step_continues(storage: RedisStorage) -> None:
    lease, job = await claimed(storage, *(f"{n:04}" for n in range(1000)))
    await storage.enqueue("q", requests(*(f"x{n:04}" for n in range(10))))
    result = await start(storage, completion(job), lease, 1005)

    assert isinstance(result, SettleAndClaimResult)
    assert len(result.claim.jobs) == 1005


async def test_a_server_without_the_script_ends_it_with_none(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    lease, job = await claimed(storage, "a", "b")
    redis_server.execute("SCRIPT", "FLUSH")

    assert await start(storage, completion(job), lease, 1) is None
    assert ["done"] == [one.status for one in await storage.settle("q", completion(job))]


async def test_an_error_reply_ends_it_with_a_storage_error(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease, job = await claimed(storage, "a", "b")
    redis_server.execute("SET", f"{prefix}:{{q}}:outcomes", "1")

    assert isinstance(await start(storage, completion(job), lease, 1), StorageError)


async def test_it_sends_nothing_for_an_argument_that_the_verb_refuses(storage: RedisStorage) -> None:
    lease, job = await claimed(storage, "a")

    assert not storage.start_settle_and_claim("q", completion(job), lease, 0, unexpected)
    assert not storage.start_settle_and_claim("", completion(job), lease, 1, unexpected)


async def test_it_sends_nothing_for_a_follow_up_in_a_new_queue(storage: RedisStorage) -> None:
    lease, job = await claimed(storage, "a")
    then = (FollowUp(queue="new", job=requests("b")[0].job),)

    assert not storage.start_settle_and_claim("q", completion(job, then=then), lease, 1, unexpected)
    await storage.enqueue("new", requests("a"))
    assert isinstance(await start(storage, completion(job, then=then), lease, 1), SettleAndClaimResult)


async def test_it_sends_nothing_under_a_manual_clock(opened: Callable[..., RedisStorage]) -> None:
    async with opened(clock="manual") as storage:
        assert not storage.start_settle_and_claim("q", [], "l", 1, unexpected)


#: The server whose scripts the handler flushes.
flushing: list[RedisServer] = []


async def double(number: int) -> int:
    if number == FLUSHING:
        flushing[-1].execute("SCRIPT", "FLUSH")
    return 2 * number


async def test_a_worker_sends_the_verb_after_a_direct_settlement_that_did_not_run(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, end = list[Any](), RedisDirectSettle._end_settle_and_claim

    def noted(self: Any, sent: Any, reply: Any) -> None:
        ends.append(type(reply).__name__)
        end(self, sent, reply)

    monkeypatch.setattr(RedisDirectSettle, "_end_settle_and_claim", noted)
    app = Dibs(redis_server.url, prefix="direct-settle")

    task = app.task(double)
    flushing.append(redis_server)
    async with app, asyncio.timeout(60):
        working = asyncio.create_task(app.work())
        for number in range(4):
            assert 2 * number == await task.enqueue_and_wait(number)
        working.cancel()
        await asyncio.wait([working])
    assert "NoScriptError" in ends
    assert "list" in ends
