"""An empty place on each storage of the list, an app on it, and a clerk at a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from dibs import Dibs, Queue
from dibs.storage.registry import open_storage
from tests.lineage import actors
from tests.lineage.clerk import Clerk
from tests.lineage.places import PLACES, STORAGES


@pytest.fixture(params=STORAGES)
def storage_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty place."""
    return PLACES[request.param](request)


@pytest.fixture
def other_url(request: pytest.FixtureRequest, storage_url: str) -> str:
    """Another place on the same storage."""
    return PLACES[request.node.callspec.params["storage_url"]](request)


@pytest.fixture
async def app(storage_url: str) -> AsyncIterator[Dibs]:
    """An app that is open on the place."""
    async with Dibs(storage_url) as app:
        yield app


@pytest.fixture
def queue(app: Dibs) -> Queue:
    return app.queue("q")


@pytest.fixture
async def clerk(storage_url: str) -> AsyncIterator[Clerk]:
    """Someone at the protocol's counter, with a clock that the test sets."""
    async with open_storage(storage_url, clock="manual") as storage:
        yield Clerk(storage)


@pytest.fixture
def stage() -> Iterator[actors.Stage]:
    """Where the actors of this test write down what they did."""
    actors.STAGE = actors.Stage()
    yield actors.STAGE
    actors.STAGE.leave()
