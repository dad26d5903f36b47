"""A storage that a worker of the test applications serves, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frameworks.served import start_worker
from tests.storage_urls import new_url


@pytest.fixture(scope="module", params=["file"])
def worked_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of a storage that a `dibs worker` of the test applications serves."""
    folder = tmp_path_factory.mktemp("worked")
    url = f"file:{folder}/jobs" if request.param == "file" else new_url(request.param, request)
    with start_worker(url, folder):
        yield url
