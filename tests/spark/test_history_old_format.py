"""Warehouses of format 1, with hard and symbolic links, are read and carried over."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from dibs.errors import StorageDamaged, StorageTooNew
from dibs.spark.history.increments import update
from dibs.spark.history.warehouse import cleanup
from dibs.spark.history.warehouse.manifest import TABLES, WarehouseState
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.figures.create import create_report
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.random_day import RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import KEYS, rows, runs_in


def to_old_format(location: Path) -> None:
    """Turn a warehouse into one of format 1, as earlier versions wrote it, with two generations."""
    now = Warehouse.existing(location)
    state = {name: getattr(now.manifest, name) for name in WarehouseState.__struct_fields__}
    for generation in ("000000000006", "000000000007"):
        folder = location / "generations" / generation
        for table in TABLES:
            (folder / table).mkdir(parents=True)
            for file in now.manifest.tables[table]:
                old = location / file.path
                new = folder / table / old.parts[-3] / old.parts[-2] / old.name
                new.parent.mkdir(parents=True, exist_ok=True)
                os.link(old, new)
        (folder / "state.json").write_bytes(msgspec.json.encode({**state, "format": 1}))
    (location / "current").symlink_to(Path("generations", "000000000007"))
    for table in TABLES:
        (location / table).symlink_to(Path("current", table))
    shutil.rmtree(location / "manifests")
    shutil.rmtree(location / "data")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A warehouse of format 1 with one increment of a storage."""
    location = tmp_path / "warehouse"

    async def fill() -> None:
        async with open_storage(f"file:{tmp_path}/jobs", clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare(all_events_of="mail")
            await day.advance(90)

    asyncio.run(fill())
    update(f"file:{tmp_path}/jobs", location, engine="duckdb")
    to_old_format(location)
    return location


def test_a_report_reads_it_as_it_is(old: Path) -> None:
    report, _ = create_report(old)

    assert ("000000000007", 2) == (report.generation, len(report.queues))
    assert not (old / "manifests").exists()


def test_the_next_increments_carry_it_over(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files stay where they are, until the last generation that names them is deleted."""
    monkeypatch.setattr(cleanup, "KEEP_SECONDS", 0)
    url = f"file:{tmp_path}/jobs"

    async def go_on() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage, seed=2)
            day.now += 90_000_000
            for number in range(3):
                await day.advance(40)
                done = await asyncio.to_thread(update, url, old, engine="duckdb")
                assert f"{8 + number:012d}" == done.generation
            events, live = await all_events(storage), await all_slots(storage)
        pairs = [(queue, event) for queue, _, event in events]
        horizon = Warehouse.existing(old).state.horizon

        assert expected_history.metrics(pairs, live, horizon) == rows(old, "metrics", *KEYS["metrics"])
        assert expected_history.ids(pairs) == rows(old, "ids", *KEYS["ids"])
        assert expected_history.runs(pairs) == runs_in(old)

    asyncio.run(go_on())
    kept = {path for path in Warehouse.existing(old).manifest.paths() if path.startswith("generations/")}
    stored = {path.relative_to(old).as_posix() for path in (old / "generations").rglob("*.parquet")}

    assert kept
    assert kept <= stored
    assert not any(path.is_symlink() for path in old.iterdir())
    assert ["000000000007"] == [folder.name for folder in (old / "generations").iterdir()]


@pytest.mark.parametrize("keeps_target", [True, False])
def test_a_copy_without_links_says_so(old: Path, tmp_path: Path, *, keeps_target: bool) -> None:
    """A copy by `cp -rL` has a folder `current`, and one through an object store has no `current`."""
    shutil.copytree(old, tmp_path / "copy")
    if not keeps_target:
        shutil.rmtree(tmp_path / "copy" / "current")

    with pytest.raises(StorageDamaged, match="copied without its links"):
        Warehouse.existing(tmp_path / "copy")
    with pytest.raises(StorageDamaged, match="copied without its links"):
        update(f"file:{tmp_path}/jobs", tmp_path / "copy", engine="duckdb")


def test_a_moved_warehouse_is_read(old: Path, tmp_path: Path) -> None:
    shutil.move(old, tmp_path / "moved")

    assert 7 == Warehouse.existing(tmp_path / "moved").manifest.generation


@pytest.mark.parametrize(
    ("raw", "error"),
    [(b'{"format": 9}', StorageTooNew), (b'{"format": 1, "offs', StorageDamaged), (None, StorageDamaged)],
)
def test_a_damaged_state_is_refused(old: Path, raw: bytes | None, error: type[Exception]) -> None:
    state = old / "generations" / "000000000007" / "state.json"
    state.unlink()
    if raw is not None:
        state.write_bytes(raw)

    with pytest.raises(error):
        Warehouse(old)
