"""Exports of `metrics`, `ids` and `live`, which replace the whole table with each generation."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from dibs.errors import Refused
from dibs.spark.connection import run_in_thread
from dibs.spark.history.export import iceberg, position
from dibs.spark.history.export.delta import find_position
from dibs.spark.history.increments import update
from dibs.spark.history.reading import table_dataset
from dibs.spark.history.warehouse.draft import WarehouseBusy
from dibs.spark.history.warehouse.manifest import folder_name
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.cli.shell import Shell
from tests.spark.keyed_jobs import fill_keyed
from tests.spark.killed_export import catalog_in, export_to, export_until
from tests.spark.random_day import RandomDay
from tests.spark.source_storages import at, jobs, run_some

if TYPE_CHECKING:
    from collections.abc import Iterator

TABLES = ("metrics", "ids", "live")


@pytest.fixture(params=["delta", "iceberg"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "BATCH_ROWS", 7)
    monkeypatch.setattr(iceberg, "SNAPSHOT_ROWS", 20)


def exported(kind: str, folder: Path) -> list[dict[str, Any]]:
    if kind == "delta":
        return contents(DeltaTable(folder / "events").to_pyarrow_dataset().to_table())
    return contents(catalog_in(folder).load_table("jobs.events").scan().to_arrow())


def in_warehouse(warehouse: Path, table: str) -> list[dict[str, Any]]:
    return contents(table_dataset(warehouse, table).to_table())


def contents(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows in an order of their own. A warehouse has long names of queues shortened."""
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:
        row["queue"] = folder_name(row["queue"])
    return sorted(found, key=repr)


async def enqueue_two(storage: Storage) -> None:
    await storage.enqueue("mail", jobs("waits 1", "waits 2"))


@pytest.mark.parametrize("table", TABLES)
def test_each_generation_replaces_all_rows(kind: str, tmp_path: Path, table: str) -> None:
    """`live` is empty, then has two rows, and is empty again."""
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, lambda storage: run_some(storage, "mail", ["a", "b"]))
    numbers = []
    for step in (fill_keyed, enqueue_two, lambda storage: run_some(storage, "mail", ["c"])):
        update(url, warehouse, engine="duckdb")
        first, second = export_to(kind, warehouse, folder, table), export_to(kind, warehouse, folder, table)
        expected = in_warehouse(warehouse, table)
        numbers.append(len(expected))

        assert expected == exported(kind, folder)
        assert (len(expected), 0) == (first.rows, second.rows)
        assert first.generation == second.generation
        at(url, step)
    assert numbers[0] == 0 or table != "live"
    assert numbers[0] < numbers[1]


def test_an_emptied_table_is_empty_in_the_export(kind: str, tmp_path: Path) -> None:
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    rows = []
    for step in (enqueue_two, lambda storage: run_some(storage, "mail", ["c"]), enqueue_two):
        at(url, step)
        update(url, warehouse, engine="duckdb")
        done = export_to(kind, warehouse, folder, "live")
        rows.append((done.rows, len(exported(kind, folder))))
        # The generation is known, so a second export writes nothing.
        assert 0 == export_to(kind, warehouse, folder, "live").rows

    assert [(2, 2), (0, 0), (2, 2)] == rows


@pytest.mark.parametrize("table", TABLES)
async def test_a_killed_export_leaves_the_rows_of_one_generation(
    kind: str, tmp_path: Path, table: str
) -> None:
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=4)
        await day.prepare(all_events_of="mail")
        await day.advance(60)
        await to_thread(update, url, warehouse, engine="duckdb")
        await to_thread(export_to, kind, warehouse, folder, table)
        for moment in ("reading", "committing", "committed"):
            before = in_warehouse(warehouse, table)
            await day.advance(60)
            await to_thread(update, url, warehouse, engine="duckdb")

            assert await to_thread(export_until, kind, warehouse, folder, moment, table)
            assert exported(kind, folder) in (before, in_warehouse(warehouse, table))
            await to_thread(export_to, kind, warehouse, folder, table)
            assert in_warehouse(warehouse, table) == exported(kind, folder)


@pytest.mark.parametrize("is_new", [False, True], ids=["a known table", "a new table"])
def test_of_two_exports_at_the_same_time_one_writes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """The second export runs as a whole while the first one reads the rows."""
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, lambda storage: run_some(storage, "mail", ["a", "b"]))
    update(url, warehouse, engine="duckdb")
    if not is_new:
        export_to(kind, warehouse, folder, "ids")
    at(url, lambda storage: run_some(storage, "mail", ["c"]))
    update(url, warehouse, engine="duckdb")
    batches = position.ExportSource.batches
    inner: list[int] = []

    def interrupted(self: Any, done: Any) -> Iterator[pa.RecordBatch]:
        if not inner:
            inner.append(0)
            # In a thread of its own, because deltalake reads the rows in a thread of its runtime.
            inner[0] = run_in_thread(lambda: export_to(kind, warehouse, folder, "ids").rows)
        yield from batches(self, done)

    monkeypatch.setattr(position.ExportSource, "batches", interrupted)
    with pytest.raises(WarehouseBusy, match="at the same time"):
        export_to(kind, warehouse, folder, "ids")

    assert [3] == inner
    assert 0 == export_to(kind, warehouse, folder, "ids").rows
    assert ["a", "b", "c"] == sorted(row["id"] for row in exported(kind, folder))


def test_rows_of_others_are_not_replaced(kind: str, tmp_path: Path) -> None:
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, lambda storage: run_some(storage, "mail", ["a", "b"]))
    update(url, warehouse, engine="duckdb")
    own = table_dataset(warehouse, "ids").to_table()
    if kind == "delta":
        write_deltalake(folder / "events", own)
    else:
        catalog = catalog_in(folder)
        catalog.create_namespace("jobs")
        catalog.create_table("jobs.events", own.schema).append(own)

    with pytest.raises(Refused, match="the table has rows that no export has written"):
        export_to(kind, warehouse, folder, "ids")
    assert contents(own) == exported(kind, folder)


def test_the_generation_is_known_after_delta_has_deleted_the_commit(tmp_path: Path) -> None:
    url, warehouse, lake = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, lambda storage: run_some(storage, "mail", ["a", "b"]))
    update(url, warehouse, engine="duckdb")
    export_to("delta", warehouse, lake, "ids")
    table = DeltaTable(lake / "events")
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    for commit in sorted((lake / "events" / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    found = find_position(DeltaTable(lake / "events"))

    assert found is not None
    assert (1, {}, "") == (found.generation, found.offsets, found.source)
    assert 0 == export_to("delta", warehouse, lake, "ids").rows
    at(url, lambda storage: run_some(storage, "mail", ["c"]))
    update(url, warehouse, engine="duckdb")
    assert 3 == export_to("delta", warehouse, lake, "ids").rows


def test_the_command_exports_each_table(tmp_path: Path) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", str(tmp_path / "warehouse")
    at(url, fill_keyed)
    update(url, warehouse, engine="duckdb")
    shell = Shell(tmp_path)
    lines = []
    for table in TABLES:
        done = shell.type(
            "spark", "export", "--warehouse", warehouse, "--delta", str(tmp_path / table), "--table", table
        )
        assert not done.stderr
        lines.append(done.stdout)

    assert f"{tmp_path}/ids: 8 rows of ids, generation 1\n" == lines[1]
    assert f"{tmp_path}/live: 4 rows of live, generation 1\n" == lines[2]
    assert lines[0].startswith(f"{tmp_path}/metrics: ")
