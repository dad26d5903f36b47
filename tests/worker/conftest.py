"""Fixtures: an app in memory, an app whose storage processes can share, and a gate for handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dibs.app import Dibs
from tests.storage_urls import new_url
from tests.worker import apps
from tests.worker.gate import Gate
from tests.worker.supervisors import SHARED


@pytest.fixture
async def app() -> AsyncIterator[Dibs]:
    async with Dibs("memory:") as opened:
        yield opened


@pytest.fixture
async def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Gate]:
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    async with Gate.open(tmp_path / "gate") as opened:
        yield opened


#: The storages of tests without @on_all_storages: all in the long form of the suite, one in the short form.
LONG_ONLY = [pytest.param(scheme, marks=pytest.mark.chaos) for scheme in SHARED[1:]]


@pytest.fixture(params=[SHARED[0], *LONG_ONLY])
def shared_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty storage that processes can share."""
    return new_url(request.param, request)


@pytest.fixture
async def shared(shared_url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Dibs]:
    monkeypatch.setenv("DIBS_URL", shared_url)
    async with apps.app as opened:
        yield opened
