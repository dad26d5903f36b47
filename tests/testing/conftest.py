"""Each test starts with an empty record of the application, in an empty directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.testing import service


@pytest.fixture(autouse=True)
def clean_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(service, "begun", asyncio.Queue())
    service.free.clear()
    service.done.clear()
