"""For pytest in your own project: the fixture `rehearsal`, over the app that your `dibs_app` returns.

A package of its own, beside the kit: pytest imports it in every project where dibs is installed, so it
needs nothing but pytest, and dibs itself only once the fixture is asked for.
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
    """The app to rehearse: define a fixture of this name in your conftest.py."""
    pytest.fail(
        "the fixture `rehearsal` needs to know your app: define a fixture `dibs_app` that returns it",
        pytrace=False,
    )


@pytest.fixture
def rehearsal(dibs_app: Dibs) -> Iterator[Rehearsal]:
    """The app in memory for one test, with a clock that stands still; see dibs.testing.using."""
    from dibs.testing import using  # noqa: PLC0415 - only who asks for it pays for it

    with using(dibs_app) as rehearsed:
        yield rehearsed
