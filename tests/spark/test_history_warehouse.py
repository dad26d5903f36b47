"""The tables of a warehouse: two writers, old files and rows, and errors, in a folder and on S3."""

from __future__ import annotations

from asyncio import to_thread
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from dibs.errors import DibsError, Refused, StorageDamaged, StorageTooNew, StorageUnavailable
from dibs.spark.history import increments, warehouse
from dibs.spark.history.tables import TableRows, table_schema
from dibs.spark.history.warehouse import FORMAT, STATE_KEY, State, Warehouse, WarehouseBusy
from dibs.storage.registry import open_storage
from tests.spark import expected_history
from tests.spark.frames import moment
from tests.spark.random_day import QUEUES, RandomDay
from tests.spark.storage_contents import all_events, all_slots
from tests.spark.warehouse_rows import KEYS, add_rows, rows, runs_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from benchmarks.history_day import simulate_day

from dibs.spark.history.increments import update
from dibs.spark.report.figures.summary import create_report
from dibs_conformance.servers import RedisServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from typing import Any

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.model.wakeup import FLOW_ATTRIBUTE
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import asyncio

import duckdb
import polars as pl

import dibs.spark
from dibs.spark.history.reading import open_history, table_dataset, table_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def add(location: str | Path, *days: int, source: str = "file:jobs") -> Warehouse:
    """Add an event and a row of metrics for each day."""
    moments = [BEGIN + timedelta(days=day) for day in days]
    return add_rows(
        location,
        State(source=source),
        events=[{"queue": "mail", "offset": f"{at:%d}", "id": "a", "at": at} for at in moments],
        metrics=[{"queue": "mail", "minute": at, "attempts": 1} for at in moments],
    )


def files_of(table: warehouse.HistoryTable) -> int:
    return len(table.rows().files)


def test_a_reader_keeps_the_version_that_it_opened(location: str) -> None:
    add(location, 0)
    opened = Warehouse(location)
    add(location, 1)

    assert (1, 2) == (opened.generation, Warehouse(location).generation)
    assert (1, 2) == (opened.events.rows().dataset().count_rows(), Warehouse(location).events.count())
    assert {("mail", "20"): 1, ("mail", "21"): 2} == {
        key: row["increment"] for key, row in rows(location, "events").items()
    }


def test_the_second_of_two_writers_changes_nothing(location: str) -> None:
    add(location, 0)
    slow = Warehouse(location)
    add(location, 1)
    empty = TableRows("events-read")

    with pytest.raises(WarehouseBusy, match="Repeat it"):
        slow.events.append(State(), empty, increment=2)
    with pytest.raises(WarehouseBusy, match="Repeat it"):
        slow.metrics.replace(State(), TableRows("metrics"), "minute >= '2026-11-20T00:00:00Z'")
    assert (2, 2) == (Warehouse(location).events.count(), Warehouse(location).metrics.count())
    assert 2 == Warehouse(location).events.state.increment


def test_an_empty_commit_holds_its_state(location: str) -> None:
    tables = Warehouse(location, create=True)
    tables.events.append(State(increment=1, offsets={"mail": "7"}), TableRows("events-read"), increment=1)

    assert {"mail": "7"} == Warehouse(location).events.state.offsets


def test_small_files_are_merged_and_replaced_files_are_kept_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(4):
        add(tmp_path, day)
    tables = add(tmp_path, 4)
    before = rows(tmp_path, "events")
    monkeypatch.setattr(warehouse, "MAINTAIN_EVERY", 2)
    tables.maintain(tables.generation - 2, None, 0)
    on_disk = [*(tmp_path / "events").glob("*.parquet")]

    assert (1, 6) == (files_of(Warehouse(tmp_path).events), len(on_disk))
    assert before == rows(tmp_path, "events")
    monkeypatch.setattr(warehouse, "KEEP_HOURS", 0)
    tables.maintain(tables.generation - 2, None, 0)

    assert [*map(str, tmp_path.glob("events/*.parquet"))] == Warehouse(tmp_path).events.rows().files
    assert State(source="file:jobs", increment=5) == Warehouse(tmp_path).events.state


def test_files_of_killed_writers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = add(tmp_path, 0)
    orphan = tmp_path / "events" / "part-00000-killed.snappy.parquet"
    orphan.write_bytes(b"PAR1")
    tables.events.maintain()
    young = orphan.exists()
    monkeypatch.setattr(warehouse, "KEEP_ORPHANS_HOURS", 0)
    tables.events.maintain()

    assert (True, False) == (young, orphan.exists())


def test_rows_are_kept_for_the_given_time(location: str) -> None:
    tables = add(location, *range(9))
    add(location, 9, 10)
    now = round((BEGIN + timedelta(days=10)).timestamp() * 1000)
    tables = Warehouse(location)
    tables.maintain(0, 4 * 86_400_000, now)
    tables = Warehouse(location)
    commits = tables.events.delta.version()
    tables.maintain(0, 4 * 86_400_000, now + 3_600_000)

    assert [26, 27, 28, 29, 30] == sorted(int(offset) for _, offset in rows(location, "events"))
    assert 5 == Warehouse(location).metrics.count()
    assert commits == Warehouse(location).events.delta.version()
    assert 2 == Warehouse(location).events.state.increment


def test_the_state_is_found_behind_commits_of_other_programs(tmp_path: Path) -> None:
    add(tmp_path, 0)
    DeltaTable(tmp_path / "events").optimize.compact()
    write_deltalake(tmp_path / "events", table_schema("events").empty_table(), mode="append")

    assert "file:jobs" == Warehouse(tmp_path).events.state.source


# -- errors ------------------------------------------------------------------------------------------


def test_a_missing_warehouse_names_the_command_that_creates_one(location: str) -> None:
    with pytest.raises(Refused, match="dibs spark history"):
        Warehouse(location)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("ftp://host/history", "schemes"),
        ("s3://", "names no bucket"),
    ],
)
def test_a_url_of_no_store_is_refused(location: str, error: str) -> None:
    with pytest.raises(Refused, match=error):
        Warehouse(location)


def test_an_object_store_that_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket on a port where no server listens."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    with pytest.raises(StorageUnavailable, match=r"cannot open .*s3://nowhere/history/metrics"):
        Warehouse("s3://nowhere/history")


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DibsError, match="cannot open the table"):
        Warehouse(tmp_path / "file", create=True)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (msgspec.json.encode({"format": FORMAT + 1, "offsets": 3}).decode(), StorageTooNew),
        ('{"format": 2, "offs', StorageDamaged),
        ("[]", StorageDamaged),
    ],
)
def test_a_state_that_cannot_be_trusted_is_refused(
    tmp_path: Path, state: str, error: type[Exception]
) -> None:
    add(tmp_path, 0)
    write_deltalake(
        tmp_path / "metrics",
        table_schema("metrics").empty_table(),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={STATE_KEY: state}),
    )

    with pytest.raises(error):
        Warehouse(tmp_path)


async def test_increments_and_reruns_make_the_expected_tables(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables do not depend on increments, compaction and reruns."""
    monkeypatch.setattr("dibs.spark.history.warehouse.MAINTAIN_EVERY", 2)
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage)
        await day.prepare(all_events_of="mail")
        await day.advance(250)
        await to_thread(increments.update, url, warehouse, engine="spark")
        await day.advance(80)
        done = await to_thread(increments.update, url, warehouse, engine="spark")
        events, live = await all_events(storage), await all_slots(storage)
    pairs = [(queue, event) for queue, _, event in events]
    horizon = Warehouse(warehouse).state.horizon

    assert 1 == len(Warehouse(warehouse).events.rows().files)
    assert (0, ()) < (done.events, done.gaps) < (len(events), ())
    assert set(QUEUES) == set(done.starts) == {queue for queue, _ in rows(warehouse, "metrics")}
    assert expected_history.metrics(pairs, live, horizon) == rows(warehouse, "metrics", "queue", "minute")
    assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
    assert expected_history.runs(pairs) == runs_in(warehouse)

    before = {table: rows(warehouse, table, *key) for table, key in KEYS.items()}
    since, until = moment(day.now - 5_000_000), moment(day.now - 1_000_000)
    await to_thread(increments.rerun, warehouse, since, until, engine="spark")

    assert before == {table: rows(warehouse, table, *key) for table, key in KEYS.items()}


# -- A million runs and four million events with a Java heap of one gigabyte: only the tables grow ---


@pytest.mark.spark
async def test_a_million_runs_are_counted_and_read(
    spark: SparkSession, redis_server: RedisServer, tmp_path: Path
) -> None:
    url = f"{redis_server.url}?prefix=big"
    # A quarter of a day is simulated with a quarter of the calls, as each step has more runs.
    planted = await simulate_day(url, runs=1_300_000, hours=6, level="all")

    done = await to_thread(update, url, tmp_path / "warehouse", engine="spark")
    made, _ = create_report(tmp_path / "warehouse")

    assert 1_000_000 < planted.runs == sum(queue.attempts for queue in made.queues)
    assert 4_000_000 < done.events
    assert all(queue.little.agree for queue in made.queues)
    assert planted.outage[1] == made.outages[0].end
    assert [planted.poison] == [(one.queue, one.id) for one in made.poisons]


# -- Both engines write the same values, and those of the plain computation in expected_history.py ---


def tables(warehouse: Path) -> dict[str, dict[Any, dict[str, Any]]]:
    return {table: rows(warehouse, table, *key) for table, key in KEYS.items()}


@pytest.mark.parametrize("seed", range(3))
async def test_increments_of_duckdb_make_the_expected_tables(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four increments of random sizes, each compared with a count of the whole history."""
    monkeypatch.setattr("dibs.spark.history.warehouse.MAINTAIN_EVERY", 2)
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=seed)
        await day.prepare(all_events_of="mail")
        for _ in range(4):
            await day.advance(day.random.randrange(120))
            await to_thread(increments.update, url, warehouse, engine="duckdb")
            events, live = await all_events(storage), await all_slots(storage)
            pairs = [(queue, event) for queue, _, event in events]
            horizon = Warehouse(warehouse).state.horizon

            assert expected_history.metrics(pairs, live, horizon) == rows(
                warehouse, "metrics", "queue", "minute"
            )
            assert expected_history.ids(pairs) == rows(warehouse, "ids", "queue", "id")
            assert expected_history.runs(pairs) == runs_in(warehouse)


async def add_job_with_a_memo(storage: Storage, now: int) -> None:
    """Add a job with a key, a flow and a memo, which waits for a second run, and a successor of it."""
    data = JobData(key="ada", attributes={FLOW_ATTRIBUTE: b'"flow 1"'})
    requests = [EnqueueRequest(job=NewJob(id="step", data=data))]
    await storage.enqueue("flow", requests, now=now)
    lease = (await storage.grant(["flow"], 240_000, "worker", now=now)).lease
    [job] = (await storage.claim("flow", lease, 1, now=now)).jobs
    assert job.run
    await storage.report("flow", "step", job.run.fence, memo=b"12345", now=now)
    await storage.enqueue("flow", requests, now=now)


async def test_both_engines_write_equal_tables(spark: SparkSession, tmp_path: Path) -> None:
    """Each engine continues what the other began, and both agree with an engine that worked alone."""
    url, alone, mixed = f"file:{tmp_path}/jobs", tmp_path / "alone", tmp_path / "mixed"
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage, seed=9)
        await day.prepare(all_events_of="mail")
        await add_job_with_a_memo(storage, day.now)
        for engine in ("spark", "duckdb", "spark"):
            await day.advance(70)
            await to_thread(increments.update, url, alone, engine="duckdb")
            await to_thread(increments.update, url, mixed, engine=engine)

            assert tables(alone) == tables(mixed)
    live = rows(mixed, "live", "queue", "id", "state")
    columns = ("key", "flow", "memo_bytes")
    assert ["ada", "flow 1", 5] == [live["flow", "step", "active"][name] for name in columns]
    assert ["ada", "flow 1", None] == [live["flow", "step", "blocked"][name] for name in columns]
    await to_thread(increments.rerun, mixed, engine="spark")
    await to_thread(increments.rerun, alone, engine="duckdb")

    assert tables(alone) == tables(mixed)


# -- The tables of a warehouse read by other programs: DuckDB, Polars, pandas, pyarrow and Spark -----


SHOWN = ["id", "fence", "end", "wait_ms", "queue"]


@pytest.fixture
def filled(location: str, tmp_path: Path) -> str:
    """A warehouse of three increments, so that some of its files were replaced."""
    url = f"file:{tmp_path}/jobs"

    async def go_on() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            for _ in range(3):
                await day.advance(70)
                await asyncio.to_thread(update, url, location, engine="duckdb")

    asyncio.run(go_on())
    return location


def expected(location: str) -> list[tuple[object, ...]]:
    return sorted(
        (row["id"], row["fence"], row["end"], row["wait_ms"], queue)
        for (queue, _), row in rows(location, "runs").items()
    )


def test_arrow_polars_and_pandas_read_the_dataset(filled: str) -> None:
    dataset = table_dataset(filled, "runs")

    assert expected(filled) == sorted(
        tuple(row.values()) for row in dataset.to_table(columns=SHOWN).to_pylist()
    )
    assert expected(filled) == sorted(pl.scan_pyarrow_dataset(dataset).select(SHOWN).collect().rows())
    frame = dataset.to_table(columns=SHOWN).to_pandas()
    assert expected(filled) == sorted(frame.itertuples(index=False, name=None))


def test_duckdb_has_a_view_of_each_table(filled: str) -> None:
    with open_history(filled) as history:
        names = ", ".join(f'"{name}"' for name in SHOWN)
        found = history.sql(f"SELECT {names} FROM runs").fetchall()
        counts = {name: len(history.table(name)) for name in ("events", "runs", "metrics", "ids", "live")}

    assert expected(filled) == sorted(found)
    assert {name: len(rows(filled, name)) for name in counts} == counts


def test_programs_without_dibs_read_the_tables(tmp_path: Path) -> None:
    """Any reader of Delta Lake, and any reader of Parquet with the list of files."""
    location, url = str(tmp_path / "warehouse"), f"file:{tmp_path}/jobs"

    async def fill() -> None:
        async with open_storage(url, clock="manual") as storage:
            day = RandomDay(storage)
            await day.prepare()
            for _ in range(2):
                await day.advance(70)
                await asyncio.to_thread(update, url, location, engine="duckdb")

    asyncio.run(fill())
    offsets = sorted(rows(location, "events"))
    files = table_files(location, "events")

    assert offsets == sorted(pl.read_delta(f"{location}/events").select("queue", "offset").rows())
    assert offsets == sorted(duckdb.read_parquet(files).select('queue, "offset"').fetchall())
    frame = DeltaTable(f"{location}/metrics").to_pandas()
    assert len(rows(location, "metrics")) == len(frame)


@pytest.mark.parametrize("table", ["events", "runs", "metrics", "ids", "live"])
def test_spark_reads_a_table(filled: str, spark: SparkSession, table: str) -> None:
    found = dibs.spark.read(filled, table).toArrow()
    columns = found.column_names

    assert table_dataset(filled, table).schema.names == columns
    # Maps have no order.
    order = [(name, "ascending") for name in columns if name != "attributes"]
    expected_rows = table_dataset(filled, table).to_table().sort_by(order).to_pylist()
    assert expected_rows == found.cast(table_dataset(filled, table).schema).sort_by(order).to_pylist()


def test_an_unknown_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="known tables: events, runs"):
        table_dataset(tmp_path, "jobs")
    with pytest.raises(Refused, match="is no stored table"):
        table_files(tmp_path, "runs")
