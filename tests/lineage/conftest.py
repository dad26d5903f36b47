"""Fixtures: an empty storage of each kind, an app on it, and a client of the protocol with a manual clock."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dibs import Dibs, Queue
from dibs.storage.registry import open_storage
from tests.lineage import scripted_handlers
from tests.lineage.protocol_client import ProtocolClient
from tests.lineage.storage_urls import NEW_URLS, STORAGES


@pytest.fixture(params=STORAGES)
def storage_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of an empty storage."""
    return NEW_URLS[request.param](request)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, storage_url: str) -> str:
    """Return the URL of a second empty storage of the same kind."""
    return NEW_URLS[request.node.callspec.params["storage_url"]](request)


@pytest.fixture
async def app(storage_url: str) -> AsyncIterator[Dibs]:
    """An open app on the storage."""
    async with Dibs(storage_url) as app:
        yield app


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("q")


@pytest.fixture
async def protocol(storage_url: str) -> AsyncIterator[ProtocolClient]:
    """A client of the storage protocol with a manual clock."""
    async with open_storage(storage_url, clock="manual") as storage:
        yield ProtocolClient(storage)


@pytest.fixture
def record() -> Iterator[scripted_handlers.HandlerRecord]:
    """The runs of the scripted handlers in this test."""
    scripted_handlers.RECORD = scripted_handlers.HandlerRecord()
    yield scripted_handlers.RECORD
    scripted_handlers.RECORD.release_threads.set()
