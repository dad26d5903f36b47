"""Storages on a real Redis, with a separate prefix for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest

from dibs.storage.redis import RedisStorage, open_url
from dibs_conformance.servers import RedisServer

_NUMBERS = count()


@pytest.fixture
def prefix() -> str:
    return f"t{next(_NUMBERS)}"


@pytest.fixture
def opened(redis_server: RedisServer, prefix: str) -> Callable[..., RedisStorage]:
    """Return a function that makes storages with the same prefix."""

    def make(**options: Any) -> RedisStorage:
        return open_url(redis_server.url, **{"prefix": prefix, **options})

    return make


@pytest.fixture
async def storage(opened: Callable[..., RedisStorage]) -> AsyncIterator[RedisStorage]:
    async with opened() as storage:
        yield storage
