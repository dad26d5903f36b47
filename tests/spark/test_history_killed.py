"""A writer killed with SIGKILL before and after each change of the store: generations stay complete."""

from __future__ import annotations

from asyncio import to_thread
from itertools import count
from pathlib import Path

import pytest

from dibs.spark.history import increments
from dibs.spark.history.warehouse import draft
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.killed_writer import write_until
from tests.spark.random_day import RandomDay
from tests.spark.staged_tables import MAIL, NEXT, add, counts
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import rows, runs_in


def check_kills(location: str, changes: int) -> int:
    """Kill a writer at each change, and return the number of kills.

    Each write adds one file to two partitions and increases the horizon, so all three numbers are equal.
    """
    kills = 0
    for change in range(1, changes + 1):
        for moment in ("before", "after"):
            before = Warehouse.existing(location).state.horizon
            kills += write_until(change, moment, location)
            now = Warehouse.existing(location).state.horizon

            assert now - before in (0, 1)
            assert {MAIL: now, NEXT: now} == counts(location)
    return kills


def test_a_writer_killed_at_any_change_leaves_a_complete_generation(tmp_path: Path) -> None:
    """The changes of the writer are two files and the manifest."""
    location = str(tmp_path / "warehouse")
    add(location, MAIL, NEXT)

    assert 6 == check_kills(location, 3)
    add(location, MAIL, NEXT)
    assert [] == [*(tmp_path / "warehouse").glob("staging/*")]


def test_a_writer_killed_at_its_commit_on_s3(s3_bucket: str) -> None:
    location = f"{s3_bucket}/killed"
    add(location, MAIL, NEXT)
    before = Warehouse.existing(location).state.horizon
    assert write_until(3, "before", location)
    between = Warehouse.existing(location).state.horizon
    assert write_until(3, "after", location)

    assert (before, before, before + 1) == (1, between, Warehouse.existing(location).state.horizon)
    assert {MAIL: 2, NEXT: 2} == counts(location)


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["duckdb", "spark"])
async def test_increments_killed_at_every_change_add_each_event_once(
    request: pytest.FixtureRequest,
    location: str,
    tmp_path: Path,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The long form: twenty kills, before and after each change."""
    monkeypatch.setattr(draft, "KEEP_SECONDS", 0)
    url = f"file:{tmp_path}/jobs"
    env = request.getfixturevalue("quick_start") if engine == "spark" else {}
    kills = 0
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=5)
        await day.prepare(all_events_of="mail")
        for number in count():
            # An increment has about ten changes: its files, its manifest, and the removal of old files.
            change, moment = number % 10 + 1, ("before", "after")[number // 10 % 2]
            await day.advance(20)
            kills += await to_thread(write_until, change, moment, location, url, engine, env=env)
            if kills >= 20:
                break
        await to_thread(increments.update, url, location)
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse.existing(location).state.horizon

    assert expected_history.metrics(pairs, live, horizon) == rows(location, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(location, "ids", "queue", "id")
    assert expected_history.runs(pairs) == runs_in(location)
