"""Lost replies, lost scripts, lost connections, lost memory of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.model.job import JobData, NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage, open_url
from dibs.storage.redis.network import connections
from dibs_conformance.servers import RedisServer, start_redis


def request(id: str, **more: int) -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=id.encode()), **more))


async def test_a_flush_of_scripts_goes_unnoticed_under_load(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    async def work(name: str) -> None:
        lease = (await storage.grant(["q"], 60_000, name)).lease
        for i in range(40):
            await storage.enqueue("q", [request(f"{name}{i}")])
            jobs = (await storage.claim("q", lease, 5)).jobs
            ends = [Settlement(id=j.id, fence=j.run.fence, action=Complete()) for j in jobs if j.run]
            assert {"done"} >= {one.status for one in await storage.settle("q", ends)}

    async def flush() -> None:
        while True:
            await asyncio.to_thread(redis_server.forget_code)
            await asyncio.sleep(0.002)

    flushing = asyncio.create_task(flush())
    await asyncio.gather(*(work(name) for name in "abcd"))
    flushing.cancel()
    with suppress(asyncio.CancelledError):
        await flushing
    counts = (await storage.counts(["q"]))["q"]

    assert (160, 0, 0) == (counts.completed, counts.waiting, counts.active)


async def test_a_lost_reply_raises_outcome_unknown_and_the_next_reply_is_right(
    storage: RedisStorage, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.enqueue("q", [request("a")])
    monkeypatch.setattr(connections, "REPLY_TIMEOUT", 0.05)
    redis_server.pause()
    try:
        with pytest.raises(OutcomeUnknown, match="may have happened"):
            await storage.enqueue("q", [request("b")])
    finally:
        redis_server.resume()
    monkeypatch.setattr(connections, "REPLY_TIMEOUT", 10.0)

    (slot,) = await storage.get("q", ["a"])
    assert slot.current is not None
    assert b"a" == slot.current.data.payload


async def test_a_caller_never_gets_the_reply_to_a_cancelled_request(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    names = [f"n{i}" for i in range(50)]
    await storage.enqueue("q", [request(name) for name in names])

    async def read(name: str) -> None:
        for _ in range(10):
            (slot,) = await storage.get("q", [name])
            assert slot.current is not None
            assert name == slot.current.id == slot.current.data.payload.decode()

    async def give_up(name: str, after: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(read(name), after)

    await asyncio.gather(*(give_up(name, i / 5000) for i, name in enumerate(names)))

    await asyncio.gather(*(read(name) for name in names))


async def test_killed_connections_are_replaced(storage: RedisStorage, redis_server: RedisServer) -> None:
    await storage.enqueue("q", [request("a")])
    redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    await asyncio.sleep(0.01)

    assert "queued" == (await storage.enqueue("q", [request("b")]))[0].status


async def test_a_restart_of_the_server_is_waited_for() -> None:
    # Write the file at once: a write that waits for another one would be lost with the process.
    with start_redis(appendonly="yes", appendfsync="always") as server:
        async with open_url(server.url) as storage:
            await storage.enqueue("q", [request("a")])
            server.kill()
            with suppress(OutcomeUnknown, StorageUnavailable):
                await storage.get("q", ["a"])
            back = asyncio.create_task(asyncio.to_thread(server.start))
            (slot,) = await storage.get("q", ["a"])
            await back

            assert slot.current is not None


async def test_a_wait_survives_the_loss_of_its_connection(
    opened: Callable[..., RedisStorage], redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(poll=30.0) as mine, opened() as others:
        waiting = asyncio.create_task(mine.wait(["q"], timeout=20))
        while not int(redis_server.execute("CLIENT", "KILL", "TYPE", "pubsub")):  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.01)
        await others.enqueue("q", [request("a")])

        assert (await asyncio.wait_for(waiting, 15)).woken
    assert "polling until it is back" in caplog.text


async def test_a_wait_for_an_id_sleeps_through_the_ends_of_others(
    opened: Callable[..., RedisStorage],
) -> None:
    async with opened() as mine, opened() as others:
        await others.enqueue("q", [request("a"), request("b")])
        await mine.wait(["q"], for_="ids", ids=["b"], timeout=0)  # the first wait ends early: it subscribes
        waiting = asyncio.create_task(mine.wait(["q"], for_="ids", ids=["b"], timeout=5))
        await asyncio.sleep(0.05)
        await others.cancel("q", ["a"])
        await asyncio.sleep(0.05)
        slept = not waiting.done()
        await others.cancel("q", ["b"])

        assert slept
        assert (await waiting).woken
