"""DataFrames written to queues: the jobs, the rejected rows, and repeated writes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import functions as f

from dibs.errors import Refused
from dibs.model.requests import Reject
from dibs.spark.dataframes import enqueue
from dibs.spark.source import partition_writer
from dibs.spark.source.options import write_options
from dibs.spark.source.partition_writer import WriteTask, write_partition
from tests.spark.source_storages import SHARED, at, jobs, records, wait_until
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
from collections.abc import Sequence

import pyarrow.parquet as pq
from pyspark.sql import datasource as ds

from dibs.errors import BatchRefused
from dibs.model.request_columns import RequestColumns, make_member
from dibs.spark.dataframes import read
from dibs.spark.source.partition_writer import KeySetSink, RequestSink
from tests.spark.keyed_jobs import JOBS, OUTCOMES, fill_keyed
from tests.spark.test_source_read import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest) -> str:
    return new_url(request.param, request)


def payloads(url: str, queue: str) -> dict[str, Any]:
    """Return the payloads of the current jobs of a queue, by id."""
    found = at(url, lambda storage: records(storage, queue))
    return {id: json.loads(r.slot.current.data.payload) for id, r in found.items() if r.slot.current}


@pytest.mark.parametrize("named", [True, False], ids=["ids", "no ids"])
def test_a_named_write_adds_no_row_twice_from_other_partitions(
    spark: SparkSession, tmp_path: Path, *, named: bool
) -> None:
    """Adaptive execution, other cores and `repartition` change the partitions of the same rows."""
    url = f"file:{tmp_path}/jobs"
    rows = spark.range(12).select(f.struct("id").alias("data"))
    if named:
        rows = rows.withColumn("id", f.concat(f.lit("job "), f.col("data.id").cast("string")))

    first, again = (enqueue(rows.repartition(parts), "work", url=url, run="backfill") for parts in (2, 3))

    assert (0, 12) == (first.repeated, again.repeated)
    assert 12 == len(payloads(url, "work"))


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).select(f.struct("id").alias("data"))


@pytest.mark.parametrize("kept", [0, 2_500_000, 2**30])
def test_rows_arrive_once_whether_kept_or_encoded(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Of 4,500 rows, none, the first 2,000 and all are kept as requests until all are checked."""
    url = new_url("redis", request)
    monkeypatch.setattr(partition_writer, "KEPT_BYTES", kept)
    ids = [f"{number:05}" for number in range(4500)]
    rows = pa.table({"id": ids, "payload": [id.encode() * 20 for id in ids]}).to_batches(700)
    options, task = write_options({"url": url, "queue": "work"}), WriteTask("run", 0, 0)

    first = write_partition(options, task, rows)
    again = write_partition(options, task, rows)

    found = at(url, lambda storage: records(storage, "work"))
    assert {id: id.encode() * 20 for id in ids} == {
        id: record.slot.current.data.payload for id, record in found.items() if record.slot.current
    }
    assert ids == sorted(ids, key=lambda id: found[id].slot.current.seq)  # type: ignore[union-attr]
    assert (4500, 0, 4500) == (first.rows, first.repeated, again.repeated)


def test_no_row_is_sent_if_a_later_one_is_invalid(request: pytest.FixtureRequest) -> None:
    url = new_url("redis", request)
    rows = pa.table({"id": ["a"] * 1500 + [""], "payload": [b"1"] * 1501}).to_batches()
    options = write_options({"url": url, "queue": "work"})

    with pytest.raises(Refused, match="row 1500"):
        write_partition(options, WriteTask("run", 0, 0), rows)

    assert {} == at(url, lambda storage: records(storage, "work"))


def test_all_columns_of_a_row_arrive(spark: SparkSession, url: str) -> None:
    rows = spark.range(1).select(
        f.lit("a").alias("id"),
        f.struct(f.lit("x").alias("to"), f.array(f.lit(1), f.lit(2)).alias("n")).alias("data"),
        f.lit(NOON).alias("run_at"),
        f.lit(7).alias("priority"),
        f.struct(f.lit("red").alias("colour"), f.lit(3).alias("size")).alias("attributes"),
    )

    report = enqueue(rows, "work", url=url)

    job = at(url, lambda storage: records(storage, "work"))["a"].slot.current
    assert job is not None
    assert b'{"to":"x","n":[1,2]}' == job.data.payload
    assert {"colour": b'"red"', "size": b"3"} == job.data.attributes
    assert (int(NOON.timestamp() * 1000), 7) == (job.run_at, job.data.priority)
    assert (1, {"queued": 1}, 0, 0) == (report.rows, report.statuses, report.repeated, report.rejected)


def test_the_same_run_again_adds_no_job(spark: SparkSession, url: str) -> None:
    """Rows are recognised by the name of their write; under another name they are new."""
    rows = numbers(spark, 2500)

    first = enqueue(rows, "work", url=url, run="monday")
    again = enqueue(rows, "work", url=url, run="monday")

    assert (2500, 0) == (first.rows, first.repeated)
    assert (2500, 2500) == (again.rows, again.repeated)
    assert first.statuses == again.statuses == {"queued": 2500}
    assert sorted(range(2500)) == sorted(row["id"] for row in payloads(url, "work").values())


class KilledOnce:
    """Rows for Spark from a process that kills itself once, after some rows have been enqueued."""

    def __init__(self, url: str, mark: Path) -> None:
        self._url = url
        self._mark = mark

    def __call__(self, rows: Iterable[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if number == 15_000 and not self._mark.exists():
                wait_until(self._has_some)
                self._mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    def _has_some(self) -> bool:
        return at(self._url, lambda storage: storage.counts(["work"]))["work"].waiting > 0


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_a_task_that_is_killed_and_retried_adds_no_job_twice(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, scheme: str
) -> None:
    """With rejects, rows are sent as they come: attempt 0 dies after a part of them, and attempt 1 sends
    all.
    """
    url = new_url(scheme, request)
    # More data than the buffers between the two Python processes of a task hold.
    large = spark.range(0, 20_000, 1, 1).select(f.format_string("%0200d", "id").alias("data"))
    rows = spark.createDataFrame(large.rdd.mapPartitions(KilledOnce(url, tmp_path / "killed")), large.schema)

    report = enqueue(rows, "work", url=url, rejects=tmp_path / "rejects")

    assert (tmp_path / "killed").exists()
    assert (20_000, {"queued": 20_000}) == (report.rows, report.statuses)
    assert 0 < report.repeated < 20_000
    assert list(range(20_000)) == sorted(map(int, payloads(url, "work").values()))


def test_without_rejects_the_first_invalid_row_fails_its_partition(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    url = new_url("postgresql", request)
    rows = spark.range(0, 2000, 1, 1).select(
        f.when(f.col("id") == 1500, "x" * 600).otherwise(f.col("id").cast("string")).alias("id"),
        f.lit(1).alias("data"),
    )

    with pytest.raises(PythonException, match=r"row 1500 of partition 0: id has 600 bytes; it must have 1"):
        enqueue(rows, "work", url=url)
    assert {} == payloads(url, "work")


def test_with_rejects_valid_rows_arrive_and_invalid_rows_are_written_with_reasons(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    rows = spark.createDataFrame(
        [("good", b"1", 0, None), ("p", b"1", 5000, None), ("", b"1", 0, None), ("n", None, 0, "replace")],
        "id string, payload binary, priority int, on_conflict string",
    ).coalesce(1)

    report = enqueue(rows, "work", url=url, rejects=tmp_path / "rejects")

    kept = spark.read.parquet(str(tmp_path / "rejects")).collect()
    assert (4, {"queued": 1}, 3) == (report.rows, report.statuses, report.rejected)
    assert {"good": 1} == payloads(url, "work")
    assert [("", "id"), ("n", "payload"), ("p", "priority")] == sorted((r.id, r.reject_field) for r in kept)
    assert "must be -1000 to 1000" in next(r.reject_reason for r in kept if r.id == "p")


def test_the_conflict_rule_of_a_row_overrides_the_rule_of_the_write(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = new_url("file", request)
    at(url, lambda storage: storage.enqueue("work", jobs("a", "b", "c", payload=b"0")))
    rows = spark.createDataFrame(
        [("a", 1, None), ("b", 2, "update"), ("c", 3, '{"type":"update","data":false,"run_at":"later"}')],
        "id string, data int, on_conflict string",
    )
    report = tmp_path / "reports" / "one.json"

    options = {"url": url, "queue": "work", "on_conflict": "reject", "report": str(report)}
    rows.write.format("dibs").mode("append").options(**options).save()

    assert {"a": 0, "b": 2, "c": 0} == payloads(url, "work")
    assert {"duplicate": 1, "updated": 2} == json.loads(report.read_text())["statuses"]


def test_memory_is_written_in_the_driver(spark: SparkSession) -> None:
    url = "memory:written-by-spark"

    report = enqueue(numbers(spark, 10), "work", url=url, on_conflict=Reject())

    assert (10, {"queued": 10}) == (report.rows, report.statuses)
    assert 10 == len(payloads(url, "work"))
    with pytest.raises(AnalysisException, match=r"dibs\.spark\.enqueue"):
        numbers(spark, 1).write.format("dibs").mode("append").options(url=url, queue="work").save()


WRONG: dict[str, tuple[str, str]] = {
    "a name there is not": ("1 as data, 2 as runat", "unknown column 'runat'"),
    "a number for an id": ("1 as id, 1 as data", "column id must be string, not int"),
    "a time without a zone": ("1 as data, timestamp_ntz'2100-01-01' as run_at", "not timestamp_ntz"),
    "text for a priority": ("1 as data, 'high' as priority", "column priority must be an integer"),
    "nothing to do": ("'a' as id", "exactly one of the columns data"),
    "two things to do": ("1 as data, binary('x') as payload", "exactly one of the columns data"),
    "attributes without names": (
        "1 as data, map(1, 2) as attributes",
        "keys of attributes must be strings, not int",
    ),
}


@pytest.mark.parametrize(("columns", "message"), WRONG.values(), ids=WRONG)
def test_columns_of_a_wrong_kind_are_refused_before_any_task(
    spark: SparkSession, columns: str, message: str
) -> None:
    rows = spark.sql(f"select {columns}")

    with pytest.raises(Refused, match=message):
        enqueue(rows, "work", url="memory:refused-by-spark")


# -- The calls of a task that writes: their sizes, and rows that the storage refuses -----------------


def columns_of(sizes: Sequence[int]) -> RequestColumns:
    return RequestColumns(
        ids=[str(number) for number in range(len(sizes))],
        payloads=[b"x" * size for size in sizes],
        members=[make_member(b"x" * 12, number) for number in range(len(sizes))],
    )


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([], []),
        ([1] * 1000, [(0, 1000)]),
        ([1] * 2500, [(0, 1000), (1000, 2000), (2000, 2500)]),
        ([60, 40, 1], [(0, 2), (2, 3)]),
        ([60, 41, 59, 1], [(0, 1), (1, 3), (3, 4)]),
        ([500, 500], [(0, 1), (1, 2)]),
    ],
)
def test_a_call_has_a_limit_of_rows_and_of_bytes(
    sizes: list[int], calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_writer, "MAX_CALL_BYTES", 100 if max(sizes, default=0) > 1 else 10_000)

    assert calls == list(partition_writer._split_into_calls(columns_of(sizes)))


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_rows_that_the_storage_refuses_are_rejected(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses two rows, after an invalid one. It has the strictest limits of all storages."""
    url = new_url(scheme, request)
    ids = ["", *"abcd", "long 1", "e", "long 2", "f"]
    table = pa.table({"id": ids, "payload": [b"1"] * len(ids)})
    refuse_long_ids(monkeypatch)
    options = write_options({"url": url, "queue": "work", "rejects": str(tmp_path)})

    report = write_partition(options, WriteTask("run", 0, 0), table.to_batches())

    assert (9, 3, {"queued": 6}) == (report.rows, report.rejected, dict(report.statuses))
    assert set("abcdef") == set(at(url, lambda storage: records(storage, "work")))
    rejected = pq.read_table(tmp_path).to_pylist()
    assert [("", "id"), ("long 1", "id"), ("long 2", "id")] == sorted(
        (row["id"], row["reject_field"]) for row in rejected
    )


def test_a_refusal_without_rows_fails_the_write(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sink: KeySetSink, columns: RequestColumns) -> Any:
        raise BatchRefused("the queue", [Refused("no", field="queue")])

    monkeypatch.setattr(KeySetSink, "enqueue", refuse)
    url = new_url("redis", request)
    table = pa.table({"id": ["a"], "payload": [b"1"]})

    with pytest.raises(BatchRefused):
        write_partition(
            write_options({"url": url, "queue": "work", "rejects": str(tmp_path)}),
            WriteTask("run", 0, 0),
            table.to_batches(),
        )


def refuse_long_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both sinks refuse ids of more than 5 letters."""

    def refuse(columns: RequestColumns) -> None:
        bad = [
            Refused(f"{id} is too long", field="id", index=index)
            for index, id in enumerate(columns.ids)
            if len(id) > 5
        ]
        if bad:
            raise BatchRefused("some rows", bad)

    for kind in (KeySetSink, RequestSink):
        send: Any = kind.enqueue

        def checked(sink: Any, columns: RequestColumns, send: Any = send) -> Any:
            refuse(columns)
            return send(sink, columns)

        monkeypatch.setattr(kind, "enqueue", checked)


# -- The columns `key`, `flow` and `memo_bytes` of the tables `jobs` and `outcomes`, on each storage --


NAMES = ("key", "flow", "memo_bytes")


@pytest.mark.parametrize("scheme", SHARED)
def test_they_are_those_of_the_records(request: pytest.FixtureRequest, scheme: str) -> None:
    url = new_url(scheme, request)
    at(url, fill_keyed)

    jobs = {(row["id"], row["state"]): tuple(row[name] for name in NAMES) for row in rows_of(url, "jobs")}
    ends = {row["id"]: tuple(row[name] for name in NAMES) for row in rows_of(url, "outcomes")}

    assert JOBS == jobs
    assert OUTCOMES == {id: ends[id] for id in OUTCOMES}
    assert "flow 1" == ends["shared"][1]


@pytest.mark.parametrize("scheme", ["file", "postgresql"])
def test_filters_compare_them(request: pytest.FixtureRequest, scheme: str) -> None:
    url = new_url(scheme, request)
    at(url, fill_keyed)
    same = [ds.EqualTo(("key",), "ada"), ds.EqualTo(("flow",), "flow 1"), ds.GreaterThan(("memo_bytes",), 4)]

    assert ["busy"] == [row["id"] for row in rows_of(url, "jobs", same, columns=("id", "revision"))]
    assert ["failed"] == [row["id"] for row in rows_of(url, "outcomes", same, columns=("id", "revision"))]


def test_spark_reads_them_also_from_memory(spark: SparkSession) -> None:
    url = "memory:keys-read-by-spark"
    at(url, fill_keyed)

    jobs = read(spark, "jobs", url=url).select("id", "state", *NAMES).collect()
    assert JOBS == {(row.id, row.state): tuple(row[name] for name in NAMES) for row in jobs}
    outcomes = read(spark, "outcomes", url=url, columns=["id", "flow"]).where("flow is not null").collect()
    assert {"failed", "done", "shared", "flow 1/h0abc/0"} == {row.id for row in outcomes}
