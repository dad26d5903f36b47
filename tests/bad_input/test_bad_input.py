"""Every row of bad input gets its error, names its field, and writes nothing.

A new row is one line in calls.py, verbs.py, declarations.py, urls.py or commands.py.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from dibs.storage import registry
from tests.bad_input.calls import CALLS
from tests.bad_input.declarations import DECLARATIONS
from tests.bad_input.urls import URLS
from tests.bad_input.verbs import VERBS
from tests.bad_input.world import Row, World, opened, try_row
from tests.conftest import ALL_SCHEMES
from tests.source import PROJECT

#: The rows that reach a storage.
STORED = [*CALLS, *VERBS]


@pytest.fixture
async def world(any_url: str) -> AsyncIterator[World]:
    async with opened(any_url, f"bad-{os.urandom(4).hex()}") as world:
        yield world


@pytest.mark.parametrize("row", [*DECLARATIONS, *URLS], ids=lambda row: row.call)
async def test_a_declaration_or_url(row: Row) -> None:
    async with opened("memory:", "q") as world:
        before = await world.contents()

        assert await try_row(world, row) is None
        assert before == await world.contents()


@pytest.mark.parametrize("row", STORED, ids=lambda row: row.call)
async def test_a_call_in_memory(row: Row) -> None:
    """One test for each row, so that the name of a failed test is the call."""
    async with opened("memory:", "q") as world:
        before = await world.contents()

        assert await try_row(world, row) is None
        assert before == await world.contents()


async def try_all(world: World) -> None:
    before = await world.contents()
    wrong = [found for row in STORED if (found := await try_row(world, row))]

    assert [] == wrong
    assert before == await world.contents()


@pytest.mark.long
@pytest.mark.parametrize("any_url", ALL_SCHEMES, indirect=True)
async def test_all_calls_on_every_storage(world: World) -> None:
    """Each storage raises the errors of the rows, before anything is written."""
    await try_all(world)


async def test_all_calls_on_the_storage_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SQLite example calls the shared checks, so it raises the same errors."""
    monkeypatch.syspath_prepend(PROJECT / "examples/dibs-sqlite/src")
    monkeypatch.setitem(registry.BUILT_IN, "sqlite", "dibs_sqlite:open_url")
    async with opened(f"sqlite:{tmp_path}/jobs.db", "q") as world:
        await try_all(world)


def test_no_row_is_there_twice() -> None:
    calls = [row.call for row in (*STORED, *DECLARATIONS, *URLS)]

    assert sorted(set(calls)) == sorted(calls)
    assert len(calls) > 500
