"""Messages are hints: whoever may publish wakes waits, and changes no result, token or later wake-up."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import redis.asyncio

from dibs import Dibs
from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Watch
from dibs.storage.redis import RedisStorage, open_url
from dibs_conformance.servers import RedisServer
from tests.storage.exchange import PATIENCE

HUGE: Final = 2**63
KINDS: Final[Mapping[Watch, tuple[str, ...]]] = {"work": (), "ids": ("a",), "progress": ("a",), "events": ()}
#: Messages that no script of dibs sends, or not about the storage as it is.
MESSAGES: Final = {
    "empty": b"",
    "short": b"1",
    "text": b"no number",
    "digits": b"9" * 6000,
    "not UTF-8": b"\0" * 16 + b"\xff\xfe",
    "large": b"\0" * 2_000_000,
    "too high": struct.pack(">QQ", 0, HUGE),
    "too high, another id": struct.pack(">QQ", 0, HUGE) + b"other",
    "too high, this id": struct.pack(">QQ", 0, HUGE) + b"a",
    "high number": str(HUGE).encode(),
    "too low": struct.pack(">QQ", 0, 1) + b"a",
    "low number": b"1",
}
CHANNELS: Final = ("work", "ended", "reported", "told")


def publish(server: RedisServer, prefix: str, message: bytes, database: int = 0) -> None:
    for name in CHANNELS:
        server.execute("PUBLISH", f"{prefix}:{{q}}:{database}:{name}", message)


async def subscribe(storage: RedisStorage) -> dict[Watch, Any]:
    """Begin the subscription of each kind of wait, and return their tokens."""
    return {
        kind: (await storage.wait(["q"], for_=kind, ids=ids, timeout=0)).since for kind, ids in KINDS.items()
    }


async def claim_one(storage: RedisStorage, queue: str = "q") -> int:
    lease = (await storage.grant([queue], 60_000, "worker")).lease
    (job,) = (await storage.claim(queue, lease, 1)).jobs
    assert job.run is not None
    return job.run.fence


async def settled(storage: RedisStorage, fence: int, queue: str = "q", result: bytes = b"1") -> None:
    await storage.settle(queue, [Settlement(id="a", fence=fence, action=Complete(result=result))])


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_a_false_message_changes_no_later_wake_up(
    opened: Callable[..., RedisStorage], redis_server: RedisServer, prefix: str, message: bytes
) -> None:
    async with opened(poll=600.0) as storage:
        tokens = await subscribe(storage)
        waits = {kind: asyncio.create_task(wait_for(storage, kind, since)) for kind, since in tokens.items()}
        await asyncio.sleep(0)
        for _ in range(3):
            publish(redis_server, prefix, message)
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        tokens["work"] = await waits.pop("work")
        fence = await claim_one(storage)
        publish(redis_server, prefix, message)
        await storage.report("q", "a", fence, b"0.5")
        tokens["progress"] = await waits.pop("progress")
        publish(redis_server, prefix, message)
        await settled(storage, fence)
        for kind, wait in waits.items():
            tokens[kind] = await wait

        # A false message may have ended a wait just before the change, so the first wait may report it.
        await asyncio.sleep(0.05)
        for kind in ("ids", "events"):
            since = (
                await storage.wait(["q"], for_=kind, ids=KINDS[kind], since=tokens[kind], timeout=0)
            ).since
            now = await storage.wait(["q"], for_=kind, ids=KINDS[kind], since=since, timeout=0)
            assert not now.woken


async def wait_for(storage: RedisStorage, kind: Watch, since: Any) -> Any:
    """Wait until the state of the storage shows a change, and return its token."""
    async with asyncio.timeout(PATIENCE):
        while True:
            since = (await storage.wait(["q"], for_=kind, ids=KINDS[kind], since=since)).since
            (slot,) = await storage.get("q", ["a"])
            run = slot.current and slot.current.run
            seen = {
                "work": slot.current is not None or slot.outcome is not None,
                "progress": slot.outcome is not None or (run and run.progress is not None),
                "ids": slot.outcome is not None,
                "events": slot.outcome is not None,
            }
            if seen[kind]:
                return since


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
async def test_a_false_message_forges_no_result(
    redis_server: RedisServer, prefix: str, message: bytes
) -> None:
    async with Dibs(f"{redis_server.url}?prefix={prefix}&poll=600") as app:
        queue = app.queue("q")
        ticket = await queue.enqueue(1, id="a")
        result = asyncio.create_task(ticket.result(wait=PATIENCE))
        while not [name for name in redis_server.execute("PUBSUB", "CHANNELS") if prefix in name]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(70):  # more than a session remembers
            publish(redis_server, prefix, message)
        await asyncio.sleep(0.05)
        assert not result.done()
        async with open_url(f"{redis_server.url}?prefix={prefix}") as storage:
            await settled(storage, await claim_one(storage))

        assert 1 == await result


@pytest.mark.parametrize("source", ["another queue", "another database", "the same queue"])
async def test_a_true_message_from_elsewhere_forges_no_result(
    redis_server: RedisServer, prefix: str, source: str
) -> None:
    """The proof of a message holds for its queue, and a message that is sent again tells nothing new."""
    url = redis_server.url.removesuffix("/0") + ("/5" if source == "another database" else "/0")
    queue = "r" if source == "another queue" else "q"
    async with open_url(url, prefix=prefix) as storage, redis.asyncio.from_url(url) as client:
        subscription = client.pubsub()
        await subscription.psubscribe(f"{prefix}:*:ended")
        await storage.grant(["q", "r"], 1, "first")  # both queues get the same secret
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id="a"))])
        await settled(storage, await claim_one(storage, queue), queue, b"2")
        message = None
        while message is None or message["type"] != "pmessage":
            message = await subscription.get_message(timeout=PATIENCE)
        await subscription.punsubscribe()

    async with Dibs(f"{redis_server.url}?prefix={prefix}&poll=600") as app:
        await app.storage.grant(["q"], 1, "first")
        await app.storage.wait(["q"], for_="ids", ids=["a"], timeout=0)
        ticket = await app.queue("q").enqueue(1, id="a")
        result = asyncio.create_task(ticket.result(wait=PATIENCE))
        for _ in range(70):  # more than a session remembers
            publish(redis_server, prefix, message["data"])
        await asyncio.sleep(0.05)
        assert not result.done()
        async with open_url(f"{redis_server.url}?prefix={prefix}") as storage:
            await settled(storage, await claim_one(storage))

        assert 1 == await result


async def test_the_channels_of_two_databases_are_two(redis_server: RedisServer, prefix: str) -> None:
    other = redis_server.url.removesuffix("/0") + "/5"
    async with open_url(redis_server.url, prefix=prefix) as one, open_url(other, prefix=prefix) as two:
        waits = [asyncio.create_task(each.wait(["q"], timeout=PATIENCE)) for each in (one, two)]
        while 2 > sum(prefix in name for name in redis_server.execute("PUBSUB", "CHANNELS")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await two.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        assert (await waits[1]).woken
        await one.get("q", ["a"])
        assert not waits[0].done()
        await one.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

        assert (await waits[0]).woken
