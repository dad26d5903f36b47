"""The columns `key` and `flow` of the tables `events` and `runs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dibs.model.job import OutcomeRetention
from dibs.spark import read
from dibs.spark.connection import StorageConnection
from dibs.spark.history import storage_reads
from dibs.spark.history.engines import EngineName
from dibs.spark.history.increments import rerun, update
from dibs.spark.history.reading import table_dataset
from dibs.spark.source import pages
from tests.spark.keyed_jobs import RUNS, fill_keyed
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
        # The read of the live jobs names no ids.
        if part.ids:
            asked.append((part.queue, part.ids))
        return record_pages(connection, part)

    monkeypatch.setattr(storage_reads, "record_pages", recorded)
    monkeypatch.setattr(storage_reads, "RECORDS", 2)
    update(url, tmp_path / "warehouse", engine="duckdb")

    assert {
        "limited": {"failed", "done", "kept", "again", "changed"},
        "nodes": {"flow 1/h0abc/0", "a/b/1"},
        "plain": {"d/e/5"},
    } == {queue: {id for name, ids in asked if name == queue for id in ids} for queue, _ in asked}
    assert 2 == max(len(ids) for _, ids in asked)
