"""Invalid options and columns: the error names them before a task starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException

from dibs.errors import Refused, StorageUnavailable
from dibs.model.requests import Reject, Update
from dibs.spark import read_stream
from dibs.spark.connection import StorageConnection, shared_url
from dibs.spark.source.options import parse_conflict, read_options, stream_options, write_options
from tests.spark.source_storages import at, jobs, run_some
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = {"url": "file:./jobs"}

WRONG: dict[str, tuple[Callable[[dict[str, str]], Any], dict[str, str], str]] = {
    "no table": (read_options, {}, "unknown table ''; known tables: jobs, outcomes, events, runs"),
    "an unknown table": (read_options, {"table": "job"}, "unknown table 'job'"),
    "an unknown option": (read_options, {"table": "jobs", "queus": "a"}, "unknown option 'queus'; known opt"),
    "an offset without a queue": (read_options, {"table": "events", "after": "1"}, "set option queue"),
    "an offset for jobs": (read_options, {"table": "jobs", "queue": "a", "after": "1"}, "has no offsets"),
    "half a list": (read_options, {"table": "jobs", "queue": '["a"'}, "must be a name or a JSON list"),
    "an empty name": (read_options, {"table": "jobs", "queue": '[""]'}, "queue has 0 bytes"),
    "no truth value": (read_options, {"table": "jobs", "pushdown": "maybe"}, "must be false or true"),
    "a table without events": (stream_options, {"table": "jobs"}, "that can are events and runs"),
    "no number": (stream_options, {"max_events": "0"}, "max_events is '0'; it must be an integer"),
    "no start": (stream_options, {"start": "now"}, "start is 'now'; it must be earliest, latest"),
    "a start of another": (stream_options, {"queue": "a", "start": '{"b": "1"}'}, "offset for queue 'b'"),
    "one option twice": (stream_options, {"max_events": "1", "maxOffsetsPerTrigger": "2"}, "are the same"),
    "no answer to a loss": (stream_options, {"failOnDataLoss": "maybe"}, "on_gap is 'maybe'"),
    "no queue": (write_options, {}, "option queue is missing"),
    "a reserved queue": (write_options, {"queue": "a!fail"}, "is a fail queue"),
    "an invalid run": (write_options, {"queue": "a", "run": "a/b"}, "run is 'a/b'; it must be"),
    "an unknown rule": (write_options, {"queue": "a", "on_conflict": "replace"}, "must be update, reject"),
    "an invalid setting of a rule": (
        write_options, {"queue": "a", "on_conflict": '{"type":"update","run_at":"soon"}'}, "on_conflict",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("read", "given", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_option_is_named(
    read: Callable[[dict[str, str]], Any], given: dict[str, str], message: str
) -> None:
    with pytest.raises(Refused, match=message.replace("(", r"\(")):
        read(HERE | given)


def test_a_stream_knows_the_names_of_other_sources() -> None:
    theirs = {"startingOffsets": "latest", "maxOffsetsPerTrigger": "9", "minPartitions": "4"}
    ours = {"start": "latest", "max_events": "9", "partitions": "4"}

    assert stream_options(HERE | ours) == stream_options(HERE | theirs)
    assert ["skip", "fail"] == [
        stream_options({**HERE, "failOnDataLoss": said}).on_gap for said in ("false", "TRUE")
    ]


def test_a_stream_takes_no_run_of_its_own() -> None:
    with pytest.raises(Refused, match="unknown option 'run'"):
        write_options({**HERE, "queue": "a", "run": "monday"}, stream=True)


def test_conflict_rules_as_text() -> None:
    assert Update() == parse_conflict("update")
    assert Reject() == parse_conflict("reject")
    assert Reject(failed=True) == parse_conflict('{"type": "reject", "failed": true}')
    assert Update(run_at="later") == parse_conflict('{"type": "update", "run_at": "later"}')


def test_option_queue_is_a_name_a_list_or_all_queues() -> None:
    assert [("a, b",), ("a", "b"), None] == [
        read_options({**HERE, "table": "jobs", **queue}).queues
        for queue in ({"queue": "a, b"}, {"queue": '["a", "b", "a"]'}, {})
    ]


def test_a_relative_path_becomes_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    assert f"file:{tmp_path}/jobs?fsync=1" == shared_url("file:./jobs?fsync=1")
    assert "redis://h/1?prefix=a" == shared_url("redis://h/1?prefix=a")


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageUnavailable, match=r"finds no directory .* mount the same path"),
        StorageConnection(f"file:{tmp_path}/mistyped"),
    ):
        pass
    assert not (tmp_path / "mistyped").exists()


# -- errors through Spark ----------------------------------------------------------------------------


def test_an_unknown_table(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="unknown table 'job'; known tables: jobs, outcomes"):
        spark.read.format("dibs").options(url="file:./unused", table="job").load()


def test_a_column_of_a_wrong_type(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, lambda storage: storage.enqueue("work", jobs("a")))
    reader = spark.read.format("dibs").options(url=url, table="jobs")

    for schema, message in (
        ("seq int", "column seq of table jobs is bigint, not int"),
        ("x int", "no column 'x'"),
    ):
        with pytest.raises(PySparkException, match=message):
            reader.schema(schema).load().collect()


def test_a_queue_is_never_replaced(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    rows = spark.sql("select 1 as data")

    with pytest.raises(PySparkException, match="use mode append"):
        rows.write.format("dibs").mode("overwrite").options(url=new_url("file", request), queue="work").save()


def open_in_task(url: str) -> str:
    with StorageConnection(url):
        return "open"


def test_an_unreachable_storage_is_reported_with_the_executor_and_without_secrets(
    spark: SparkSession,
) -> None:
    """The storage is opened in an executor's Python process, at a port without a server."""
    url = "redis://someone:hush@127.0.0.1:1/0?prefix=x"
    tasks = spark.sparkContext.parallelize([url], 1)

    with pytest.raises(PythonException) as caught:
        tasks.map(open_in_task).collect()
    message = str(caught.value)
    assert "partition 0, attempt 1, cannot open redis://127.0.0.1:1/0: " in message
    assert "StorageUnavailable: executor " in message
    assert "hush" not in message

    with pytest.raises(PySparkException) as planned:
        spark.read.format("dibs").options(url=url, table="jobs").load().collect()
    assert "cannot open redis://127.0.0.1:1/0: " in str(planned.value)
    assert "hush" not in str(planned.value)


@pytest.mark.parametrize("columns", ["", "(queue string, id string, state string)"])
def test_a_table_of_the_catalog_is_refused_with_the_view_to_create_instead(
    spark: SparkSession, request: pytest.FixtureRequest, columns: str
) -> None:
    """Spark gives a source in Python no options of such a table. With columns, it creates the table without
    asking the source.
    """
    url = new_url("file", request)
    at(url, lambda storage: storage.enqueue("work", jobs("a")))
    options = f"USING dibs OPTIONS (url '{url}', table 'jobs')"
    spark.sql("DROP TABLE IF EXISTS kept")

    def create_and_read() -> None:
        spark.sql(f"CREATE TABLE kept {columns} {options}")
        spark.sql("SELECT * FROM kept").collect()

    with pytest.raises(PySparkException, match="Use CREATE TEMPORARY VIEW"):
        create_and_read()

    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen {options}")
    assert 1 == spark.sql("SELECT * FROM seen").count()


def test_a_stream_of_a_table_without_events_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(
        Refused, match="table jobs cannot be streamed; the tables that can are events and runs"
    ):
        read_stream(spark, "jobs", url="file:./unused")


def test_read_stream_follows_the_log(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, lambda storage: run_some(storage, "work", ["a", "b"]))

    stream = read_stream(spark, "runs", url=url, queue="work")

    assert (True, "end") == (stream.isStreaming, stream.schema["end"].name)
