"""Exports to Delta Lake and Iceberg have each event once, over kills and with two exports at once."""

from __future__ import annotations

from asyncio import to_thread
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from dibs.errors import Refused, StorageError
from dibs.spark.history.export import iceberg, position
from dibs.spark.history.export.delta import export_delta, find_position
from dibs.spark.history.increments import rerun, update
from dibs.spark.history.reading import table_dataset
from dibs.spark.history.warehouse.draft import WarehouseBusy
from dibs.spark.history.warehouse.manifest import folder_name
from dibs.storage.registry import open_storage
from tests.cli.shell import Shell
from tests.spark.killed_export import catalog_in, export_to, export_until
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.source_storages import at, run_some

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("delta", "iceberg")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(position, "BATCH_ROWS", 7)
    monkeypatch.setattr(iceberg, "SNAPSHOT_ROWS", 20)


def read_export(kind: str, folder: Path) -> pa.Table:
    if kind == "delta":
        return DeltaTable(folder / "events").to_pyarrow_dataset().to_table()
    return catalog_in(folder).load_table("jobs.events").scan().to_arrow()


def contents(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows in the order of their offsets. A warehouse has long names of queues shortened."""
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:
        row["queue"] = folder_name(row["queue"])
    return sorted(found, key=lambda row: (row["queue"], row["offset"]))


async def test_each_event_is_exported_once_over_kills(kind: str, tmp_path: Path) -> None:
    """Each kill is followed by an increment, and after it by an export that finds the rows of both."""
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    moments = ("reading", "committing", "committed")
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=4)
        await day.prepare(all_events_of="mail")
        for moment in moments:
            await day.advance(60)
            await to_thread(update, url, warehouse, engine="duckdb")

            assert await to_thread(export_until, kind, warehouse, folder, moment)

        events = table_dataset(warehouse, "events").to_table()
        await to_thread(export_to, kind, warehouse, folder)
        exported = read_export(kind, folder)

    assert events.schema.names == exported.schema.names
    assert contents(events) == contents(exported)
    assert {*QUEUES} == {*exported.column("queue").to_pylist()}
    assert 0 == export_to(kind, warehouse, folder).rows


def test_a_rerun_of_the_warehouse_adds_nothing(kind: str, tmp_path: Path) -> None:
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    for number in range(3):
        ids = [f"{number} {id}" for id in "abcd"]
        at(url, lambda storage, ids=ids: run_some(storage, "mail", ids))  # type: ignore[misc]
        update(url, warehouse, engine="duckdb")

        assert 4 == export_to(kind, warehouse, folder).rows
        rerun(warehouse, engine="duckdb")
        assert 0 == export_to(kind, warehouse, folder).rows


@pytest.mark.parametrize("is_new", [False, True], ids=["a known table", "a new table"])
def test_of_two_exports_at_the_same_time_one_adds_the_rows(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    """The second export runs as a whole while the first one reads the rows."""
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    for ids in (["a", "b"], ["c"]):
        if not is_new and ids == ["c"]:
            export_to(kind, warehouse, folder)
        at(url, lambda storage, ids=ids: run_some(storage, "mail", ids))  # type: ignore[misc]
        update(url, warehouse, engine="duckdb")
    batches = position.ExportSource.batches
    inner: list[int] = []

    def interrupted(self: Any, done: Any) -> Iterator[pa.RecordBatch]:
        if not inner:
            inner.append(0)
            inner[0] = export_to(kind, warehouse, folder).rows
        yield from batches(self, done)

    monkeypatch.setattr(position.ExportSource, "batches", interrupted)
    with pytest.raises(WarehouseBusy, match="at the same time"):
        export_to(kind, warehouse, folder)

    assert [3 if is_new else 1] == inner
    assert 0 == export_to(kind, warehouse, folder).rows
    assert 3 == read_export(kind, folder).num_rows


def test_the_position_follows_from_the_rows_where_delta_has_deleted_the_commit(tmp_path: Path) -> None:
    url, warehouse, lake = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, lambda storage: run_some(storage, "mail", ["a", "b"]))
    update(url, warehouse, engine="duckdb")
    export_delta(warehouse, lake)
    known = find_position(DeltaTable(lake))
    table = DeltaTable(lake)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table.create_checkpoint()
    table.cleanup_metadata()
    for commit in sorted((lake / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    found = find_position(DeltaTable(lake))
    at(url, lambda storage: run_some(storage, "mail", ["c"]))
    update(url, warehouse, engine="duckdb")

    assert known is not None
    assert found is not None
    assert (known.offsets, known.generation, "") == (found.offsets, found.generation, found.source)
    assert 1 == export_delta(warehouse, lake).rows


def test_other_programs_change_and_read_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction by another program is a commit without a position. DuckDB, Polars and pyiceberg read."""
    # Polars warns about a missing package that would plan scans faster.
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    url, warehouse, lake = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    for ids in (["a", "b"], ["c"]):
        at(url, lambda storage, ids=ids: run_some(storage, "mail", ids))  # type: ignore[misc]
        update(url, warehouse, engine="duckdb")
        export_delta(warehouse, lake, "runs")
        export_to("iceberg", warehouse, tmp_path / "iceberg")
    table = DeltaTable(lake)
    table.optimize.compact(commit_properties=CommitProperties(custom_metadata={"by": "an operator"}))
    events = catalog_in(tmp_path / "iceberg").load_table("jobs.events")

    assert 0 == export_delta(warehouse, lake, "runs").rows
    assert [("mail", 3)] == (
        duckdb.from_arrow(table.to_pyarrow_dataset()).aggregate("queue, count(*)").fetchall()
    )
    assert ["a", "b", "c"] == pl.read_delta(str(lake)).sort("id")["id"].to_list()
    assert ["a", "b", "c"] == pl.scan_iceberg(events).collect().sort("id")["id"].to_list()


def test_unfit_tables_are_refused(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for warehouse in (first, second):
        url = f"file:{warehouse}-jobs"
        at(url, lambda storage: run_some(storage, "mail", ["a"]))
        update(url, warehouse, engine="duckdb")
    folder = tmp_path / "lake"
    export_to(kind, first, folder)

    with pytest.raises(Refused, match=r"the table has the events of file:\S*first-jobs"):
        export_to(kind, second, folder)
    with pytest.raises(Refused, match="unknown table 'jobs'; known tables: events, runs, metrics, ids, live"):
        export_delta(first, tmp_path / "other", "jobs")
    with pytest.raises(Refused, match="'events' has no namespace; write it"):
        iceberg.export_iceberg(first, "events", catalog=catalog_in(folder))
    with pytest.raises(Refused, match="the catalogue 'nowhere' is not configured"):
        iceberg.export_iceberg(first, "jobs.events", catalog="nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot open the table of Delta Lake at"):
        export_delta(first, tmp_path / "file" / "lake")
    with pytest.raises(Refused, match="no column end, due_at, wait_ms, run_ms"):
        export_to(kind, first, folder, "runs")
    assert 1 == read_export(kind, folder).num_rows


def test_the_command_exports_and_says_what_it_added(tmp_path: Path) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", str(tmp_path / "warehouse")
    at(url, lambda storage: run_some(storage, "mail", ["a"]))
    update(url, warehouse, engine="duckdb")
    shell, lake = Shell(tmp_path), str(tmp_path / "lake")
    export = ("spark", "export", "--warehouse", warehouse)
    first, second = shell.type(*export, "--delta", lake), shell.json(*export, "--delta", lake)

    assert ("", f"{lake}: 1 new rows of events, generation 1\n") == (first.stderr, first.stdout)
    assert {"rows": 0, "generation": 1} == second
    refused = shell.type(*export)
    assert (2, True) == (refused.exit_code, "needs either --delta LOCATION or --iceberg" in refused.stderr)
