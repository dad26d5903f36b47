"""The subscription of a storage: it leaves channels without waits, and ends with its storage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dibs.errors import NotRunning
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.wakeups import listener
from dibs_conformance.servers import RedisServer


async def test_channels_without_waits_are_unsubscribed_without_a_message(
    storage: RedisStorage, redis_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "LINGER", 0.0)
    for number in range(20):
        await storage.wait([f"q{number}"], for_="ids", ids=["a"], timeout=0)

    async with asyncio.timeout(20):
        while sum(prefix in name for name in redis_server.execute("PUBSUB", "CHANNELS")) > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    subscription = storage._waits.subscription  # type: ignore[union-attr]
    assert 2 >= len(subscription._confirmed)
    assert 2 >= len(subscription._left_at)


async def test_close_ends_the_waits_and_the_subscription(
    opened: Callable[..., RedisStorage], redis_server: RedisServer, prefix: str
) -> None:
    """The wait would only notice at its next poll, and the connection would stay."""
    storage = opened(poll=600.0)
    await storage.open()
    begun = asyncio.create_task(storage.wait(["q"], for_="work"))
    async with asyncio.timeout(20):
        while not subscribed(redis_server, prefix):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await storage.close()

        with pytest.raises(NotRunning):
            await begun
        while subscribed(redis_server, prefix):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def subscribed(server: RedisServer, prefix: str) -> list[str]:
    return [name for name in server.execute("PUBSUB", "CHANNELS") if prefix in name]
