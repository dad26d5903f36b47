"""The application of deploy/app, imported as a worker imports it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from dibs import Dibs
from dibs.worker.processes.app_import import import_app
from tests.deploy.files import DEPLOY


@pytest.fixture
def shop_app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dibs]:
    """Yield the app on a storage in memory; forget the module afterwards, as other tests have a `shop`."""
    monkeypatch.syspath_prepend(DEPLOY / "app")
    monkeypatch.setenv("DIBS_URL", "memory:")
    sys.modules.pop("shop", None)
    yield import_app("shop:app")
    sys.modules.pop("shop", None)
