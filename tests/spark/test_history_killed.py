"""Increments killed before, during and after each change of the tables: each event is there once."""

from __future__ import annotations

import asyncio
from asyncio import to_thread
from itertools import count
from pathlib import Path

import pytest

from dibs.spark.history import increments
from dibs.spark.history.warehouse import Warehouse, WarehouseBusy
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.frames import moment
from tests.spark.killed_writer import MOMENTS, write_until
from tests.spark.random_day import RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows, runs_in

#: An increment commits three tables, and then merges and removes files of each.
CHANGES = 12


async def check_kills(folder: Path, location: str, engine: str, kills: int, env: dict[str, str]) -> None:
    url = f"file:{folder}/jobs"
    killed = 0
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=5)
        await day.prepare(all_events_of="mail")
        for number in count():
            # The first three changes are the commits, at which most can go wrong.
            change = number // len(MOMENTS) % (3 if number < kills // 2 else CHANGES) + 1
            moment = MOMENTS[number % len(MOMENTS)]
            await day.advance(20)
            killed += await to_thread(write_until, change, moment, location, url, engine, env=env)
            if killed >= kills:
                break
        await to_thread(increments.update, url, location)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(location).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(location, "metrics")
    assert expected_history.ids(pairs) == rows(location, "ids")
    assert expected_history.runs(pairs) == runs_in(location)


async def test_killed_increments_add_each_event_once(tmp_path: Path) -> None:
    await check_kills(tmp_path, str(tmp_path / "warehouse"), "duckdb", 9, {})


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
async def test_many_killed_increments_add_each_event_once(
    request: pytest.FixtureRequest, location: str, tmp_path: Path, engine: str
) -> None:
    """The long form: forty kills, at each change and moment."""
    env = request.getfixturevalue("quick_start") if engine == "spark" else {}
    await check_kills(tmp_path, location, engine, 40, env)


async def test_a_rerun_after_a_kill_completes_the_metrics(tmp_path: Path) -> None:
    """The increment was killed between `live` and `metrics`, so minutes before `since` have changed too."""
    url, location = f"file:{tmp_path}/jobs", str(tmp_path / "warehouse")
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=6)
        await day.prepare()
        for change in (4, 3):
            await day.advance(60)
            assert await to_thread(write_until, change, "before", location, url, "duckdb")
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    await to_thread(
        increments.rerun, location, since=moment(Warehouse(location).live.state.horizon), engine="duckdb"
    )
    horizon = Warehouse(location).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(location, "metrics")


async def test_two_collectors_at_the_same_time_add_each_event_once(tmp_path: Path) -> None:
    """Of two increments that commit to the same version of a table, one raises WarehouseBusy."""
    url, location = f"file:{tmp_path}/jobs", str(tmp_path / "warehouse")
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=7)
        await day.prepare(all_events_of="mail")
        for _ in range(6):
            await day.advance(20)
            both = (to_thread(increments.update, url, location, engine="duckdb") for _ in range(2))
            for found in await asyncio.gather(*both, return_exceptions=True):
                assert isinstance(found, (increments.Increment, WarehouseBusy)), found
        await to_thread(increments.update, url, location)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(location).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(location, "metrics")
    assert expected_history.ids(pairs) == rows(location, "ids")
    assert expected_history.runs(pairs) == runs_in(location)
