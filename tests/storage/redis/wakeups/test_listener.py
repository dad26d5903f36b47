"""The subscription of a storage: channels without waits are left, so that they cost no memory."""

from __future__ import annotations

import asyncio

import pytest

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
