"""The columns `key` and `flow` of the tables `events` and `runs`, also in warehouses of earlier versions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from dibs.model.job import JobData, OutcomeRetention
from dibs.model.requests import Complete
from dibs.spark import read
from dibs.spark.connection import StorageConnection
from dibs.spark.history import logged_jobs, tables
from dibs.spark.history.engines import EngineName
from dibs.spark.history.increments import rerun, update
from dibs.spark.history.reading import table_dataset
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.spark.report.figures.create import create_report
from dibs.spark.source import pages
from dibs.storage.protocol import Storage
from tests.spark.keyed_jobs import RUNS, fill_keyed, run_jobs
from tests.spark.killed_export import catalog_in, export_to
from tests.spark.source_storages import SHARED, at, run_some
from tests.spark.warehouse_rows import KEYS, rows
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = OutcomeRetention(keep_payload=("completed",))

Jobs = dict[tuple[str, str], tuple[Any, Any]]


@pytest.fixture(params=["duckdb", "spark"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    if request.param == "spark":
        request.getfixturevalue("spark")
        return "spark"
    return "duckdb"


def jobs_in(warehouse: Path, table: str) -> Jobs:
    """Return key and flow of each row by queue and id."""
    found = table_dataset(warehouse, table).to_table().to_pylist()
    jobs = {(row["queue"], row["id"]): (row["key"], row["flow"]) for row in found}
    assert len(found) == len(jobs)
    return jobs


def without_job_columns(warehouse: Path) -> None:
    """Remove the columns from the files, as versions wrote them that did not have these columns."""
    removed = 0
    for name in ("events", "runs"):
        for file in Warehouse.existing(warehouse).manifest.tables[name]:
            path = warehouse / file.path
            content = pq.ParquetFile(path).read()
            names = [name for name in content.column_names if name not in ("key", "flow")]
            pq.write_table(content.select(names), path)
            removed += 1
    assert removed


async def run_one(storage: Storage) -> None:
    """Add a run with a key to the queue `limited`."""
    data = JobData(payload=b"1", key="eve", retention=KEPT)
    await run_jobs(storage, "limited", {"late": data}, {"late": Complete()})


@pytest.mark.parametrize("scheme", SHARED)
def test_key_and_flow_come_from_the_records(
    request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    url = new_url(scheme, request)
    at(url, fill_keyed)

    update(url, tmp_path / "warehouse", engine="duckdb")

    assert RUNS == jobs_in(tmp_path / "warehouse", "runs")
    assert RUNS == jobs_in(tmp_path / "warehouse", "events")


def test_both_engines_write_equal_keys_and_flows(spark: SparkSession, tmp_path: Path) -> None:
    url, first, second = f"file:{tmp_path}/jobs", tmp_path / "first", tmp_path / "second"
    at(url, fill_keyed)
    update(url, first, engine="spark")
    update(url, second, engine="duckdb")

    assert RUNS == jobs_in(first, "runs")
    for table, key in KEYS.items():
        assert rows(first, table, *key) == rows(second, table, *key)
    frame = read(first, "runs").where("key = 'ada'").select("id", "flow")
    assert [("failed", "flow 1")] == [tuple(row) for row in frame.collect()]
    rerun(first, engine="duckdb")
    rerun(second, engine="spark")
    assert RUNS == jobs_in(first, "runs") == jobs_in(second, "runs")


def test_other_ids_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The events of a queue without limits by key cost no read of records, except those of nodes."""
    url, asked = f"file:{tmp_path}/jobs", []
    at(url, fill_keyed)
    at(url, lambda storage: run_some(storage, "plain", ["a", "b/c", "d/e/f", "d/e/5"]))
    record_pages = pages.record_pages

    def recorded(connection: StorageConnection, part: Any) -> Any:
        asked.append((part.queue, part.ids))
        return record_pages(connection, part)

    monkeypatch.setattr(logged_jobs, "record_pages", recorded)
    monkeypatch.setattr(logged_jobs, "RECORDS", 2)
    update(url, tmp_path / "warehouse", engine="duckdb")

    assert {
        "limited": {"failed", "done", "kept", "again", "changed"},
        "nodes": {"flow 1/h0abc/0", "a/b/1"},
        "plain": {"d/e/5"},
    } == {queue: {id for name, ids in asked if name == queue for id in ids} for queue, _ in asked}
    assert 2 == max(len(ids) for _, ids in asked)


def test_a_warehouse_without_the_columns_goes_on(
    tmp_path: Path, engine: EngineName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old rows of such a warehouse have null. Merged files and computed tables have old and new rows."""
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    at(url, fill_keyed)
    update(url, warehouse, engine="duckdb")
    before = {name: rows(warehouse, name, *KEYS[name]) for name in ("metrics", "ids")}
    without_job_columns(warehouse)
    unknown: Jobs = dict.fromkeys(RUNS, (None, None))

    assert [None] == table_dataset(warehouse, "runs").to_table().column("key").unique().to_pylist()
    rerun(warehouse, engine=engine)
    assert unknown == jobs_in(warehouse, "runs") == jobs_in(warehouse, "events")
    assert before == {name: rows(warehouse, name, *KEYS[name]) for name in ("metrics", "ids")}
    without_job_columns(warehouse)
    monkeypatch.setattr("dibs.spark.history.warehouse.draft.MAX_SMALL_FILES", 1)
    at(url, run_one)
    update(url, warehouse, engine=engine)

    assert {**unknown, ("limited", "late"): ("eve", None)} == jobs_in(warehouse, "runs")
    assert {**unknown, ("limited", "late"): ("eve", None)} == jobs_in(warehouse, "events")
    # The files of the queue were merged.
    files = Warehouse.existing(warehouse).manifest.tables["runs"]
    assert ["limited"] == [file.queue for file in files if file.queue == "limited"]
    assert 2 == len(create_report(warehouse)[0].queues)


def test_spark_reads_a_warehouse_without_the_columns(spark: SparkSession, tmp_path: Path) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    at(url, fill_keyed)
    update(url, warehouse, engine="duckdb")
    without_job_columns(warehouse)
    at(url, run_one)
    update(url, warehouse, engine="duckdb")

    keys = {(row.id, row.key) for row in read(warehouse, "runs").select("id", "key").collect()}
    assert {*((id, None) for _, id in RUNS), ("late", "eve")} == keys


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_an_export_of_an_earlier_version_gets_the_columns(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, warehouse, folder = f"file:{tmp_path}/jobs", tmp_path / "warehouse", tmp_path / "lake"
    at(url, fill_keyed)
    update(url, warehouse, engine="duckdb")
    without_job_columns(warehouse)
    with monkeypatch.context() as patch:
        patch.setattr(tables, "JOB_COLUMNS", {})
        export_to(kind, warehouse, folder, "runs")
    assert "key" not in exported(kind, folder).column_names
    at(url, run_one)
    update(url, warehouse, engine="duckdb")

    assert 1 == export_to(kind, warehouse, folder, "runs").rows
    keys = exported(kind, folder).select(["id", "key"]).to_pylist()
    assert {*((id, None) for _, id in RUNS), ("late", "eve")} == {(row["id"], row["key"]) for row in keys}


def exported(kind: str, folder: Path) -> pa.Table:
    if kind == "delta":
        return DeltaTable(folder / "events").to_pyarrow_dataset().to_table()
    return catalog_in(folder).load_table("jobs.events").scan().to_arrow()
