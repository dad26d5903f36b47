"""Fixtures for the tests of the kit."""

from __future__ import annotations

import pytest

from tests.conftest import ALL_SCHEMES
from tests.storage_urls import new_url


@pytest.fixture(params=ALL_SCHEMES)
def any_new_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of a new storage of each kind."""
    return new_url(request.param, request)
