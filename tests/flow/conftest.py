"""Fixtures for flows: tasks on an app with flows, and a worker that runs meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.background_worker import background_worker
from tests.flow.tasks import Tasks


@pytest.fixture
async def tasks(any_url: str) -> AsyncIterator[Tasks]:
    """Tasks on a new storage of each kind."""
    tasks = Tasks(any_url)
    async with tasks.app:
        yield tasks


@pytest.fixture
async def working(tasks: Tasks) -> AsyncIterator[Tasks]:
    """The same, with a worker in this process."""
    async with background_worker(tasks.app):
        yield tasks
