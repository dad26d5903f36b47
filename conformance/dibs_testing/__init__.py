"""The pytest plugin of dibs: the fixture `rehearsal`, for the app that your fixture `dibs_app` returns.

pytest imports this package in every project where dibs is installed. So it imports only pytest, and imports
dibs when a test uses the fixture. For the same reason it is not a part of dibs_conformance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dibs import Dibs
    from dibs.testing import Rehearsal


@pytest.fixture
def dibs_app() -> Dibs:
    """Fail with a hint. Define a fixture with this name in your conftest.py that returns your app."""
    pytest.fail(
        "the fixture `rehearsal` does not know your app; define a fixture `dibs_app` that returns your app",
        pytrace=False,
    )


@pytest.fixture
def rehearsal(dibs_app: Dibs) -> Iterator[Rehearsal]:
    """Yield a Rehearsal of the app, in memory and with a manual clock; see dibs.testing.using."""
    from dibs.testing import using  # noqa: PLC0415 - only tests that use the fixture import dibs

    with using(dibs_app) as rehearsed:
        yield rehearsed
