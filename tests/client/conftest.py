"""An app on each storage there is, for what the client promises wherever the jobs live."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator

import pytest

from dibs import Dibs, Queue
from tests.places import place

EVERYWHERE = ("memory", "file", "redis", "postgresql")
#: Making a schema takes longer than most tests; queues keep them apart in one.
SHARED = f"surface_{os.urandom(4).hex()}"


@pytest.fixture(params=EVERYWHERE)
def any_url(request: pytest.FixtureRequest) -> str:
    """The URL of a place on each storage; on a server, other tests may have queues there."""
    url, mark, _ = place(request.param, request).partition("?schema=")
    return f"{url}{mark}{SHARED}" if mark else url


@pytest.fixture(params=EVERYWHERE)
def any_place(request: pytest.FixtureRequest) -> str:
    """The URL of a place on each storage where nobody has been."""
    return place(request.param, request)


@pytest.fixture
async def any_app(any_url: str) -> AsyncIterator[Dibs]:
    """An app that is open there."""
    async with Dibs(any_url) as app:
        yield app


@pytest.fixture
def any_queue(any_app: Dibs) -> Queue:
    """An empty queue there."""
    return any_app.queue(f"q-{os.urandom(6).hex()}")
