"""Fixtures: an empty storage of each kind, an app on it, and the runs of its handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dibs import Dibs
from tests.conftest import ALL_SCHEMES
from tests.lineage import scripted_handlers
from tests.storage_urls import new_url


@pytest.fixture(params=ALL_SCHEMES)
def storage_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty storage."""
    return new_url(request.param, request)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, storage_url: str) -> str:
    """Return the URL of a second empty storage of the same kind."""
    return new_url(request.node.callspec.params["storage_url"], request)


@pytest.fixture
async def app(storage_url: str) -> AsyncIterator[Dibs]:
    """An open app on the storage."""
    async with Dibs(storage_url) as app:
        yield app


@pytest.fixture
def record() -> Iterator[scripted_handlers.HandlerRecord]:
    """The runs of the scripted handlers in this test."""
    scripted_handlers.RECORD = scripted_handlers.HandlerRecord()
    yield scripted_handlers.RECORD
    scripted_handlers.RECORD.release_threads.set()
