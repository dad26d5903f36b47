"""watch_end() calls back with the outcome of an id, in the iteration in which its message arrives."""

from __future__ import annotations

import asyncio

import pytest

from dibs.model.job import JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.abilities import StopWatching
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.wakeups import listener
from dibs_conformance.servers import RedisServer

KEPT = OutcomeRetention(completed=60_000)


class Watched:
    """A queue whose messages the storage receives, and the calls of the callbacks of its watches."""

    def __init__(self, storage: RedisStorage) -> None:
        self.storage, self.calls = storage, asyncio.Queue[Outcome | None]()

    async def begin(self) -> None:
        self.lease = (await self.storage.grant(["q"], 60_000, "test")).lease
        await self.storage.wait(["q"], for_="ids", ids=["first"], timeout=0)
        await self.run("first")
        await self.storage.wait(["q"], for_="ids", ids=["first"], since={"q": "0"}, timeout=20)

    async def enqueue(self, id: str, retention: OutcomeRetention = KEPT) -> int:
        job = NewJob(id=id, data=JobData(retention=retention))
        return (await self.storage.enqueue("q", [EnqueueRequest(job=job)]))[0].revision

    async def end(self, result: bytes | None = None) -> None:
        (job,) = (await self.storage.claim("q", self.lease, 1)).jobs
        assert job.run is not None
        await self.storage.settle(
            "q", [Settlement(id=job.id, fence=job.run.fence, action=Complete(result=result))]
        )

    async def run(self, id: str) -> int:
        revision = await self.enqueue(id)
        await self.end()
        return revision

    def watch(self, id: str, revision: int) -> StopWatching | None:
        return self.storage.watch_end("q", id, revision, self.calls.put_nowait)

    async def call(self) -> Outcome | None:
        async with asyncio.timeout(20):
            return await self.calls.get()


@pytest.fixture
async def watched(storage: RedisStorage) -> Watched:
    watched = Watched(storage)
    await watched.begin()
    return watched


async def test_the_end_of_the_id_calls_back_once_with_its_outcome(watched: Watched) -> None:
    revision = await watched.enqueue("a")
    assert watched.watch("a", revision)
    await watched.end(b"7")

    outcome = await watched.call()
    assert outcome is not None
    assert (b"7", revision) == (outcome.result, outcome.revision)
    await watched.run("a")
    await watched.run("b")
    assert watched.watch("c", await watched.enqueue("c"))
    await watched.end()
    await watched.call()
    assert watched.calls.empty()


async def test_the_end_of_another_id_does_not_call_back(watched: Watched) -> None:
    await watched.enqueue("b")
    assert watched.watch("a", await watched.enqueue("a"))
    assert watched.watch("b", await watched.enqueue("z"))
    await watched.end()

    outcome = await watched.call()
    assert outcome is not None
    assert watched.calls.empty()


async def test_a_stopped_watch_does_not_call_back(watched: Watched) -> None:
    stop = watched.watch("a", await watched.enqueue("a"))
    assert stop is not None
    second = watched.watch("a", await watched.enqueue("a"))
    stop()
    await watched.end()
    await watched.call()
    stop()

    assert second is not None
    assert watched.calls.empty()
    assert not watched.storage._waits.subscription.end_watches._by_channel  # type: ignore[union-attr]


async def test_a_queue_without_a_subscription_is_not_watched(storage: RedisStorage) -> None:
    assert storage.watch_end("other", "a", 1, lambda _: None) is None


async def test_a_lost_subscription_calls_back_with_none(watched: Watched, redis_server: RedisServer) -> None:
    assert watched.watch("a", await watched.enqueue("a"))
    redis_server.execute("CLIENT", "KILL", "TYPE", "pubsub")

    assert await watched.call() is None
    assert watched.watch("a", await watched.enqueue("a")) is None


async def test_a_watched_channel_stays_subscribed(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LINGER", 0.0)
    assert watched.watch("a", await watched.enqueue("a"))
    for number in range(3):
        await watched.storage.wait([f"r{number}"], for_="ids", ids=["a"], timeout=0)
    await watched.end()

    assert await watched.call()


async def test_the_end_of_the_storage_calls_back_with_none(watched: Watched) -> None:
    assert watched.watch("a", await watched.enqueue("a"))
    await watched.storage.close()

    assert await watched.call() is None
