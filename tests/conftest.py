"""Where the tests of everything above the storages get a place for jobs: each test runs on each storage."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.storage.registry import OURS


def opened_here(scheme: str) -> bool:
    return find_spec(OURS[scheme].partition(":")[0]) is not None


SCHEMES = [scheme for scheme in ("memory", "file") if opened_here(scheme)]


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
