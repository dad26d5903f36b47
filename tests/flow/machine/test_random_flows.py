"""Random flows end as the naive reading says, on every storage.

The short form runs the same examples each time. `nox -s chaos` draws new ones; DIBS_FLOW_EXAMPLES is their
number for memory, and a tenth of it for each other storage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib import import_module
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings

from dibs.storage.registry import open_storage
from tests.flow.machine.machine import run_machine
from tests.flow.machine.world import NewStorage
from tests.source import PROJECT
from tests.storage_urls import new_url

SHORT = settings(
    max_examples=60,
    stateful_step_count=25,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
EXAMPLES = int(os.environ.get("DIBS_FLOW_EXAMPLES", "1000"))
LONG = settings(SHORT, derandomize=False, stateful_step_count=40, phases=[Phase.generate, Phase.shrink])
SCHEMES = ("memory", "file", "redis", "postgresql", "sqlite")


@pytest.fixture
def new_storage(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> NewStorage:
    """Return a function that makes a new, empty storage of one kind."""
    scheme: str = request.param
    numbers: Iterator[int] = count()

    def make_url() -> str:
        if scheme == "sqlite":
            return f"sqlite:{tmp_path}/{next(numbers)}.db"
        return new_url(scheme, request)

    if scheme == "sqlite":
        monkeypatch.syspath_prepend(PROJECT / "examples/dibs-sqlite/src")
        open_url = import_module("dibs_sqlite").open_url
        return lambda: open_url(make_url(), clock="manual")
    return lambda: open_storage(make_url(), clock="manual")


@pytest.mark.long
@pytest.mark.parametrize("new_storage", ["memory"], indirect=True)
def test_random_flows(new_storage: NewStorage) -> None:
    run_machine(new_storage, SHORT)


@pytest.mark.chaos
@pytest.mark.parametrize("new_storage", SCHEMES, indirect=True)
def test_many_random_flows(new_storage: NewStorage, request: pytest.FixtureRequest) -> None:
    share = 1 if "memory" in request.node.name else 10
    run_machine(new_storage, settings(LONG, max_examples=max(1, EXAMPLES // share)))
