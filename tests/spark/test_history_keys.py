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
from dibs.spark.history.reading import open_history, table_dataset
from dibs.spark.source import pages
from tests.spark.keyed_jobs import RUNS, fill_keyed
from tests.spark.source_storages import SHARED, at, jobs, run_some
from tests.spark.warehouse_rows import KEYS, rows
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dibs.storage.protocol import Storage
import asyncio
from collections.abc import Coroutine, Iterator
from typing import TypeVar, cast

import msgspec

from dibs.errors import Refused
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.spark.history.spark_engine import ReadPartsSource
from dibs.spark.history.storage_reads import plan_read, source_name
from dibs.storage.registry import open_storage
from dibs_conformance.servers import RedisServer

if TYPE_CHECKING:
    import pyarrow as pa

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


def test_chosen_attributes_come_with_events_and_runs(engine: EngineName, tmp_path: Path) -> None:
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    customers = {"a": b'"ada"', "b": b'"bob"', "c": b'"ada"'}

    async def fill(storage: Storage) -> None:
        for id, customer in customers.items():
            await storage.enqueue("mail", jobs(id, customer=customer, secret=b"1"))
        await storage.enqueue("mail", jobs("plain"))
        await run_some(storage, "mail", [])

    at(url, fill)
    update(url, warehouse, engine=engine, attributes=["customer", "region"])
    at(url, lambda storage: run_some(storage, "mail", ["unknown"]))
    update(url, warehouse, engine=engine)

    expected: dict[str, Any] = {id: [("customer", text.decode())] for id, text in customers.items()}
    expected |= {"plain": [], "unknown": None}
    for table in ("events", "runs"):
        assert expected == {
            id: row["attributes"] for (_, id), row in rows(warehouse, table, "queue", "id").items()
        }
    by_customer = "SELECT attributes['customer'] AS customer, count(*) FROM runs GROUP BY customer"
    assert {('"ada"', 2), ('"bob"', 1), (None, 2)} == {*open_history(warehouse).sql(by_customer).fetchall()}
    if engine == "spark":
        runs = read(warehouse, "runs")
        runs.createOrReplaceTempView("runs")
        collected = runs.sparkSession.sql(by_customer).collect()
        assert {('"ada"', 2), ('"bob"', 1), (None, 2)} == {tuple(row) for row in collected}


# -- The log ranges of an increment. These tests do not start Spark ----------------------------------


NOW = 1_795_132_800_000
HOUR = 3_600_000
T = TypeVar("T")


async def cancel_jobs(url: str, queue: str, *ids: str, now: int) -> None:
    """Log one event for each id: a job that is cancelled before a claim."""
    async with open_storage(url, clock="manual") as storage:
        await storage.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=now)
        await storage.cancel(queue, ids, now=now)


async def trim_log(url: str, queue: str, now: int) -> None:
    async with open_storage(url, clock="manual") as storage:
        await storage.configure(queue, SettingsPatch(log_age=HOUR), now=now)
        await storage.prune(queue, 100, now=now)


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file:{tmp_path}/jobs"
    asyncio.run(cancel_jobs(url, "mail", "a", now=NOW))
    return url


def test_the_first_increment_reads_the_whole_log(url: str) -> None:
    seen = plan_read(url, {})

    (stretch,) = seen.ranges
    assert ("mail", None, stretch.until) == (stretch.queue, stretch.after, seen.offsets["mail"])


def test_without_new_events_the_plan_is_empty(url: str) -> None:
    offsets = plan_read(url, {}).offsets

    assert ((), offsets, ()) == (plan_read(url, offsets).ranges, plan_read(url, offsets).offsets, ())


def test_the_next_increment_continues_at_the_offsets(url: str) -> None:
    offsets = plan_read(url, {}).offsets
    asyncio.run(cancel_jobs(url, "mail", "b", now=NOW + 1))
    asyncio.run(cancel_jobs(url, "post", "c", now=NOW + 2))
    seen = plan_read(url, offsets)

    assert [("mail", offsets["mail"]), ("post", None)] == [(one.queue, one.after) for one in seen.ranges]
    assert all(one.after is None or one.until is None or one.after < one.until for one in seen.ranges)


def test_only_the_given_queues_are_read(url: str) -> None:
    asyncio.run(cancel_jobs(url, "post", "c", now=NOW + 2))

    assert ["post"] == [one.queue for one in plan_read(url, {}, ["post"]).ranges]


def test_events_trimmed_before_the_read_are_a_gap(url: str) -> None:
    offsets = plan_read(url, {}).offsets
    asyncio.run(cancel_jobs(url, "mail", "b", now=NOW + 1))
    asyncio.run(cancel_jobs(url, "mail", "c", now=NOW + 3 * HOUR))
    asyncio.run(trim_log(url, "mail", NOW + 3 * HOUR))
    seen = plan_read(url, offsets)

    assert ("mail",) == seen.gaps
    assert [None] == [one.after for one in seen.ranges]


def test_a_log_that_ends_before_its_offset_is_refused(url: str, tmp_path: Path) -> None:
    later = f"file:{tmp_path}/later"
    asyncio.run(cancel_jobs(later, "mail", "a", now=NOW + HOUR))

    with pytest.raises(Refused, match="ends before the offset"):
        plan_read(url, plan_read(later, {}).offsets)


def test_a_task_holds_a_page_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task yields each batch before it requests the next page, however long its range."""
    url, page = f"file:{tmp_path}/jobs", 10
    ids = [f"id {number}" for number in range(20 * page)]
    asyncio.run(cancel_jobs(url, "mail", *ids, now=NOW))
    monkeypatch.setattr("dibs.spark.source.pages.PAGE", page)
    calls, run = [], StorageConnection.run

    def counted(connection: StorageConnection, call: Coroutine[Any, Any, T]) -> T:
        calls.append(call)
        return run(connection, call)

    monkeypatch.setattr(StorageConnection, "run", counted)
    parts = msgspec.json.encode(plan_read(url, {}).ranges).decode()
    source = ReadPartsSource({"url": url, "table": "events-read", "parts": parts, "tasks": "2"})
    reader = source.reader(source.schema())
    (share,) = reader.partitions()
    batches = cast("Iterator[pa.RecordBatch]", reader.read(share))
    rows, counts = [], []
    before = len(calls) + 1
    for batch in batches:
        rows.append(batch.num_rows)
        counts.append(len(calls) - before)

    assert [page] * 20 == rows
    assert [*range(1, 21)] == counts


async def test_a_plan_can_be_made_while_an_event_loop_runs(tmp_path: Path) -> None:
    """In a notebook, an event loop runs on the thread of the caller."""
    url = f"file:{tmp_path}/jobs"
    await cancel_jobs(url, "mail", "a", now=NOW)

    assert ["mail"] == [one.queue for one in plan_read(url, {}).ranges]
    assert url == source_name(url)


def test_two_prefixes_are_two_sources(redis_server: RedisServer) -> None:
    one, other = (source_name(f"{redis_server.url}?prefix={name}") for name in ("one", "other"))

    assert one != other
    assert one.endswith("prefix=one")
