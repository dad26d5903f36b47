"""Where the tests of everything above the storages get a place for jobs.

`app` is on the storages that need no server; `any_app` on every one, for what is promised wherever jobs live.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dibs import Dibs, Queue
from dibs.storage.registry import BUILT_IN
from tests.places import place


def opened_here(scheme: str) -> bool:
    return find_spec(BUILT_IN[scheme].partition(":")[0]) is not None


SCHEMES = [scheme for scheme in ("memory", "file") if opened_here(scheme)]
EVERYWHERE = ("memory", "file", "redis", "postgresql")
#: Making a schema takes longer than most tests; queues keep them apart in one.
SHARED = f"surface_{os.urandom(4).hex()}"


@pytest.fixture(params=SCHEMES)
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty place."""
    return "memory:" if request.param == "memory" else f"file:{tmp_path / 'jobs'}"


@pytest.fixture
async def app(storage_url: str) -> AsyncIterator[Dibs]:
    """An app that is open on an empty place."""
    async with Dibs(storage_url) as app:
        yield app


@pytest.fixture(autouse=True)
def log_as_found() -> Iterator[None]:
    """Leave the root logger as it was.

    A command run in this process sends the log to its test's stderr, which is closed when the next begins.
    """
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


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
