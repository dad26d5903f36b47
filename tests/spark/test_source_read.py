"""The tables as Spark reads them, compared with the protocol's view of the same storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import datasource as ds
from pyspark.sql import functions as f

from dibs.spark.connection import StorageConnection
from dibs.spark.dataframes import read
from dibs.spark.schemas import TABLES, select_columns, struct_type
from dibs.spark.source.batch_reader import PushdownReader
from dibs.spark.source.options import read_options
from dibs.spark.source.pages import id_ranges, interpolate_offset, offset_ranges
from dibs.storage.protocol import Storage
from tests.spark.frames import EPOCH
from tests.spark.source_storages import SHARED, at, fill, jobs, log, records, run_some
from tests.storage_urls import new_url

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

import duckdb
from jinja2 import Environment
from pyspark.errors import PySparkException

from dibs.spark.history.increments import update
from dibs.spark.history.reading import table_files
from dibs.spark.schemas import COLUMNS, Column, ColumnType
from tests.docs.pages import DOCS, OUTPUT, Page
from tests.spark.source_stream import is_starved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import json

from dibs.errors import Refused
from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, Fail, SettingsPatch, SettleAction, Settlement
from dibs.spark import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest) -> str:
    """A filled storage of each scheme that Spark can read."""
    url = new_url(request.param, request)
    at(url, fill)
    return url


def table(spark: SparkSession, url: str, name: str, **options: str) -> DataFrame:
    return spark.read.format("dibs").options(url=url, table=name, **options).load()


def by(frame: DataFrame, *key: str) -> dict[Any, Mapping[str, Any]]:
    rows = [row.asDict() for row in frame.collect()]
    keyed: dict[Any, Mapping[str, Any]] = {tuple(row[name] for name in key): row for row in rows}
    assert len(rows) == len(keyed)
    return keyed


def test_all_tables_agree_with_the_storage(spark: SparkSession, url: str) -> None:
    """One test for four tables, as each Spark job takes a second on a busy machine."""
    known = at(url, lambda storage: records(storage, "work"))
    frames = {name: table(spark, url, name) for name in TABLES}
    rows = by(frames["jobs"], "queue", "id", "state")

    assert {
        ("work", "again", "waiting"), ("work", "busy", "active"), ("work", "busy", "blocked"),
        ("work", "next", "waiting"), ("other", "alone", "waiting"),
    } == set(rows)  # fmt: skip
    busy, job = rows["work", "busy", "active"], known["busy"].slot.current
    assert job is not None
    assert job.run is not None
    assert (b'{"n": 1}', '{"n": 1}', {}) == (busy["payload"], busy["payload_json"], busy["attributes"])
    assert (job.run.fence, "a test", False) == (busy["fence"], busy["holder"], busy["handed_off"])
    assert (job.seq, job.revision, 1) == (busy["seq"], busy["revision"], busy["attempts"])
    assert {"colour": '"red"'} == rows["work", "busy", "blocked"]["attributes"]
    assert rows["work", "busy", "blocked"]["fence"] is None
    assert rows["other", "alone", "waiting"]["payload_json"] is None
    assert 1 == rows["work", "again", "waiting"]["retries"]

    ends = by(frames["outcomes"], "id")
    assert {"done": "completed", "failed": "failed", "gone": "cancelled"} == {
        id: row["kind"] for (id,), row in ends.items()
    }
    assert (b"[1]", "[1]") == (ends["done",]["result"], ends["done",]["result_json"])
    assert ("ValueError", "no") == (ends["failed",]["error_type"], ends["failed",]["error_message"])

    logged = at(url, lambda storage: log(storage, "work"))
    events = by(frames["events"], "offset")
    assert {offset: event.kind for offset, event in logged} == {
        o: row["kind"] for (o,), row in events.items()
    }
    runs = by(frames["runs"], "id")
    assert {"done": "completed", "failed": "failed", "again": "retried"} == {
        id: row["end"] for (id,), row in runs.items()
    }


def test_times_are_exact(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, fill)
    known = at(url, lambda storage: records(storage, "work"))
    outcome = known["done"].slot.outcome
    assert outcome is not None
    assert outcome.expires_at is not None
    columns = [f.unix_millis(name) for name in ("enqueued_at", "ended_at", "expires_at")]

    [row] = table(spark, url, "outcomes").where("id = 'done'").select(*columns).collect()

    assert (outcome.enqueued_at, outcome.ended_at, outcome.expires_at) == tuple(row)


#: Table -> condition -> the expected ids of a filled storage.
CONDITIONS: Final = {
    "jobs": {
        "queue = 'work' and state = 'waiting'": ["again", "next"],
        "state = 'blocked'": ["busy"],
        "id in ('next', 'done', 'nobody') and run_at > timestamp'2001-01-01 00:00:00'": ["next"],
        "state = 'no such state'": [],
    },
    "outcomes": {
        "kind = 'failed' and error_type is not null": ["failed"],
        "claimed_at is null or kind = 'no such kind'": ["gone"],
    },
}


@pytest.mark.parametrize("scheme", ["file", "postgresql"])
def test_filters_reach_the_storage(spark: SparkSession, request: pytest.FixtureRequest, scheme: str) -> None:
    """The data source applies comparisons with literals, and Spark applies the other filters."""
    url = new_url(scheme, request)
    at(url, fill)
    for name, conditions in CONDITIONS.items():
        for condition, ids in conditions.items():
            frame = read(spark, name, url=url).where(condition).select("id")

            assert ids == sorted(row.id for row in frame.collect()), condition
            is_pushed_down = "Filter (" not in frame._jdf.queryExecution().executedPlan().toString()
            assert is_pushed_down == (" or " not in condition), condition


def test_filters_on_offsets_seek_in_the_log(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("redis", request)
    at(url, fill)
    offsets = [offset for offset, _ in at(url, lambda storage: log(storage, "work"))]
    condition = f"queue = 'work' and offset > '{offsets[0]}' and offset < '{offsets[3]}'"

    found = read(spark, "events", url=url).where(condition).select("offset").collect()

    assert offsets[1:3] == sorted(row.offset for row in found)


def test_a_log_is_read_from_an_offset_up_to_one(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("postgresql", request)
    at(url, fill)
    offsets = [offset for offset, _ in at(url, lambda storage: log(storage, "work"))]

    frame = table(spark, url, "events", queue="work", after=offsets[0], until=offsets[2])

    assert offsets[1:3] == sorted(row.offset for row in frame.select("offset").collect())


@pytest.mark.parametrize("scheme", SHARED)
def test_a_log_is_read_in_ranges_each_event_once(request: pytest.FixtureRequest, scheme: str) -> None:
    """The bounds of ranges are offsets of events, even if the guesses are bad."""
    url = new_url(scheme, request)
    for first in range(0, 40, 4):
        ids = [f"id {number}" for number in range(first, first + 4)]
        at(url, lambda storage, ids=ids: run_some(storage, "work", ids))  # type: ignore[misc]
    offsets = [offset for offset, _ in at(url, lambda storage: log(storage, "work"))]
    with StorageConnection(url) as connection:
        for after, until in ((None, offsets[-1]), (offsets[3], offsets[30]), (offsets[7], offsets[8])):
            parts = offset_ranges(connection, "work", after, until, 5)

            inside = [o for o in offsets if (after or "") < o <= until]
            read = [[o for o in inside if (begin or "") < o <= end] for begin, end in parts]
            assert inside == [o for part in read for o in part]
            assert (len(parts) > 1) == (len(inside) > 1)


def test_an_interpolated_offset_is_between_its_bounds() -> None:
    low, high = "00000000000000ff.000001", "0000000000000fff.ffffff"
    guesses = [interpolate_offset(low, high, share / 8) for share in range(1, 8)]

    assert guesses == sorted(guess for guess in guesses if guess is not None and low < guess < high)
    assert [None, None, None] == [
        interpolate_offset(*pair, 0.5) for pair in (("1", "22"), ("1.2", "12."), ("", ""))
    ]


MANY: Final = [f"id {number}" for number in range(3200)]


async def fill_many(storage: Storage) -> None:
    """Fill a queue `many` with 3,200 ids, enough for several tasks; 10 of these jobs have ended."""
    await run_some(storage, "many", MANY[:10])
    for start in range(10, len(MANY), 800):
        await storage.enqueue("many", jobs(*MANY[start : start + 800]))
    await storage.enqueue("few", jobs("alone"))


@pytest.mark.parametrize("scheme", SHARED)
def test_one_queue_is_read_by_several_tasks_each_id_once(
    spark: SparkSession, request: pytest.FixtureRequest, scheme: str
) -> None:
    url = new_url(scheme, request)
    at(url, fill_many)

    frame = table(spark, url, "jobs", queue="many", partitions="2")
    rows = frame.select("id", f.spark_partition_id().alias("task")).collect()

    assert sorted(MANY[10:]) == sorted(row.id for row in rows)
    assert {0, 1} == {row.task for row in rows}


@pytest.mark.parametrize("scheme", SHARED)
def test_partitions_have_at_least_a_thousand_ids(request: pytest.FixtureRequest, scheme: str) -> None:
    """A queue of 3,200 ids has three partitions, however many are requested; a queue with one id has
    one.
    """
    url = new_url(scheme, request)
    at(url, fill_many)
    waiting = [ds.EqualTo(("state",), "waiting")]
    for name, filters, ids in (
        ("jobs", [], MANY[10:]),
        ("jobs", waiting, MANY[10:]),
        ("outcomes", [], MANY[:10]),
    ):
        reader = PushdownReader(
            read_options({"url": url, "table": name, "partitions": "9"}), struct_type(name)
        )
        assert [] == reader.pushFilters(list(filters))
        parts = reader.partitions()
        read = [[id for batch in reader.read(part) for id in batch["id"].to_pylist()] for part in parts]

        assert 1 + 3 == len(parts)
        assert sorted(["alone", *ids] if name == "jobs" else ids) == sorted(
            id for part in read for id in part
        )
        assert name == "outcomes" or 4 == len([part for part in read if part])


def test_a_storage_that_returns_no_bounds_is_read_by_one_task(request: pytest.FixtureRequest) -> None:
    """The contract allows a storage to return no bounds. For one task, the storage is not called."""
    url = new_url("redis", request)
    at(url, fill_many)
    with StorageConnection(url) as connection:
        asked = []

        async def split(queue: str, parts: int, **_: Any) -> tuple[str, ...]:
            asked.append((queue, parts))
            return ()

        connection.storage.split = split  # type: ignore[method-assign]
        assert [(None, None)] == id_ranges(connection, "many", None, 2)
        assert [(None, None)] == id_ranges(connection, "many", None, 1)

    assert [("many", 2)] == asked


def test_a_place_with_nothing_in_it_is_an_empty_table(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    url = new_url("redis", request)

    assert [[]] * 4 == [table(spark, url, name).collect() for name in TABLES]


def test_a_choice_of_columns_may_be_given(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, fill)

    frame = spark.read.format("dibs").options(url=url, table="jobs").schema("state string, id string").load()

    assert ["state", "id"] == frame.columns
    assert ("waiting", "alone") in {tuple(row) for row in frame.collect()}


def test_memory_is_read_in_the_driver(spark: SparkSession) -> None:
    """A memory: storage exists in this process only, so other processes cannot read it."""
    url = "memory:read-by-spark"
    at(url, fill)

    assert 5 == read(spark, "jobs", url=url).count()
    assert struct_type("runs").names == read(spark, "runs", url=url).columns
    with pytest.raises(AnalysisException, match=r"dibs\.spark\.read"):
        table(spark, url, "jobs")


# -- filters and columns -----------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["file", "postgresql"])
@pytest.mark.parametrize(
    ("name", "filters"),
    [
        ("jobs", [ds.EqualTo(("state",), "waiting"), ds.IsNotNull(("payload_json",))]),
        ("jobs", [ds.EqualTo(("state",), "blocked")]),
        ("jobs", [ds.In(("attempts",), (1, 7)), ds.GreaterThan(("claimed_at",), EPOCH)]),
        ("jobs", [ds.LessThanOrEqual(("run_at",), EPOCH)]),
        ("outcomes", [ds.IsNull(("claimed_at",))]),
        ("outcomes", [ds.EqualTo(("kind",), "failed"), ds.GreaterThanOrEqual(("id",), "f")]),
    ],
)
def test_filters_and_columns_of_each_way_to_read(
    request: pytest.FixtureRequest, scheme: str, name: str, filters: list[ds.Filter]
) -> None:
    url = new_url(scheme, request)
    at(url, fill)
    whole = [row for row in rows_of(url, name) if passes(row, filters)]

    found = rows_of(url, name, filters, columns=("id", "revision"))

    assert [{key: row[key] for key in ("id", "revision")} for row in whole] == found


def passes(row: Mapping[str, Any], filters: list[ds.Filter]) -> bool:
    """Return whether a row of Arrow passes filters, by plain Python."""
    kinds: dict[type[ds.Filter], Any] = {
        ds.EqualTo: lambda found, value: found == value,
        ds.In: lambda found, value: found in value,
        ds.GreaterThan: lambda found, value: found > value,
        ds.GreaterThanOrEqual: lambda found, value: found >= value,
        ds.LessThanOrEqual: lambda found, value: found <= value,
    }
    for each in filters:
        found = row[each.attribute[0]]  # type: ignore[attr-defined]
        if isinstance(each, (ds.IsNull, ds.IsNotNull)):
            if (found is None) != isinstance(each, ds.IsNull):
                return False
        elif found is None or not kinds[type(each)](found, each.value):  # type: ignore[attr-defined]
            return False
    return True


def rows_of(
    url: str, name: str, filters: list[ds.Filter] | None = None, columns: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows that the reader yields, without Spark, sorted by queue, id and first revision."""
    schema = select_columns(name, columns) if columns else struct_type(name)
    reader = PushdownReader(read_options({"url": url, "table": name}), schema)
    assert not list(reader.pushFilters(filters or []))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: (row.get("queue", ""), row["id"], row["revision"]))


# -- The pages on Spark: their code blocks run with a Spark session, and their columns are those of the --


#: The types of columns in Spark's DDL.
WORDS: Final[dict[ColumnType, str]] = {
    "text": "string", "bytes": "binary", "integer": "int", "long": "bigint", "flag": "boolean",
    "time": "timestamp", "texts": "map<string,string>",
}  # fmt: skip


def test_every_block_prints_its_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's processes keep their working directory, so relative paths are made absolute."""
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in Page("howto/spark.md").blocks if block.has_mark("in-spark")]
    for block in blocks:
        text = run(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in text.splitlines() if line and line[0] not in "+|"]
        assert OUTPUT.findall(block.text) == printed
    assert len(blocks) == 8


def test_the_recipes_for_pipelines_print_their_output(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocks without Spark run in tests/docs, and the block with Kafka does not run."""
    page = Page("howto/data_pipelines.md")
    page.save(tmp_path, **{"./": f"{tmp_path}/"})
    monkeypatch.syspath_prepend(str(tmp_path))
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b", "c"]))
    names: dict[str, Any] = {"spark": spark}
    blocks = [block for block in page.blocks if block.has_mark("in-spark")]
    for block in blocks:
        text = run(block.text.replace("./", f"{tmp_path}/"), names)

        printed = [line for line in text.splitlines() if line and line[0] not in "+|"]
        assert OUTPUT.findall(block.text) == printed
    assert len(blocks) == 5
    page.unload()


def test_the_model_of_dbt_makes_its_table(tmp_path: Path) -> None:
    """DuckDB downloads its delta_scan; a macro with the files of the table stands for it."""
    at(f"file:{tmp_path}/jobs", lambda storage: run_some(storage, "mail", ["a", "b", "c"]))
    update(f"file:{tmp_path}/jobs", tmp_path / "history", engine="duckdb")
    [model] = (block.text for block in Page("howto/data_pipelines.md").files if "models/" in block.title
               and block.language == "sql")  # fmt: skip
    select = Environment().from_string(model).render(config=lambda **_: "")
    files = table_files(tmp_path / "history", "events")
    with duckdb.connect() as database:
        database.execute(f"CREATE MACRO delta_scan(path) AS TABLE SELECT * FROM read_parquet({files!r})")
        rows = database.sql(select).fetchall()

    assert [("mail", 3, 0)] == [(queue, runs, failed) for queue, _, runs, failed, _ in rows]


def run(code: str, names: dict[str, Any]) -> str:
    """Return the output of a block; a stream is started again if its Python process started too slowly."""
    for _ in range(20):
        with contextlib.redirect_stdout(io.StringIO()) as output:
            try:
                exec(code, names)
            except PySparkException as error:
                if "readStream" in code and is_starved(error):
                    continue
                raise
        return output.getvalue()
    raise TimeoutError("the Python process of the stream did not start within ten seconds, 20 times")


def test_the_columns_on_the_page_are_those_of_the_tables() -> None:
    page = (DOCS / "reference/spark.md").read_text("utf-8")

    for table, columns in COLUMNS.items():
        assert f"### {table}\n\n```text\n{described(columns)}\n```\n" in page


def described(columns: Iterable[Column]) -> str:
    """Return columns in the form of the page: one per line, with type and nullability."""
    return "\n".join(
        f"{column.name:<16} {WORDS[column.kind]}{'' if column.nullable else ', never null'}"
        for column in columns
    )


# -- Failed jobs are mended and enqueued again, once -------------------------------------------------


FAILED = Fail(error=Error(type="KeyError", message="no"))


async def end_all(storage: Storage, **ends: SettleAction) -> None:
    """Claim all jobs of queue `work` and end them: as `ends` says for an id, else by failure."""
    lease = (await storage.grant(["work"], 600_000, "a test")).lease
    claimed = (await storage.claim("work", lease, 100)).jobs
    ended = [(job.id, job.run.fence) for job in claimed if job.run]
    settlements = [Settlement(id=id, fence=fence, action=ends.get(id, FAILED)) for id, fence in ended]
    await storage.settle("work", settlements)


def mended(rows: DataFrame) -> DataFrame:
    data = f.from_json(f.decode("payload", "utf-8"), "n bigint")
    return rows.withColumn("data", data.withField("n", data["n"] + 1)).drop("payload")


def test_a_repeated_replay_adds_no_job_twice(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    at(url, lambda storage: storage.enqueue("work", jobs("a", "b", "live", colour=b'"red"')))
    at(url, lambda storage: end_all(storage, b=Complete()))
    failed = spark.createDataFrame(read(spark, "outcomes", url=url).where("kind = 'failed'").toArrow())
    at(url, lambda storage: storage.enqueue("work", jobs("live", payload=b"7")))

    first = replay(failed, fix=mended, run="monday", url=url)

    slots = at(url, lambda storage: records(storage, "work"))
    waiting = {id: record.slot.current.data for id, record in slots.items() if record.slot.current}
    assert {"a": {"n": 2}, "live": 7} == {id: json.loads(data.payload) for id, data in waiting.items()}
    assert {"colour": b'"red"'} == dict(waiting["a"].attributes)
    assert [{"queued": 1, "duplicate": 1}] == [report.statuses for report in first]

    at(url, end_all)
    again = replay(failed.coalesce(1), fix=mended, run="monday", url=url)

    assert [2] == [report.repeated for report in again]
    assert not any(record.slot.current for record in at(url, lambda s: records(s, "work")).values())
    [info] = at(url, lambda storage: storage.queues())
    assert 7 * 86_400_000 == info.settings.request_key_age


def test_a_job_keeps_its_key(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    request_with_key = EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"1", key="ada")))
    at(url, lambda storage: storage.enqueue("work", [request_with_key]))
    at(url, end_all)
    failed = spark.createDataFrame(read(spark, "outcomes", url=url).toArrow())

    replay(failed, run="monday", url=url)
    current = at(url, lambda storage: records(storage, "work"))["a"].slot.current
    assert current is not None
    assert "ada" == current.data.key


def test_outcomes_without_data_are_refused(spark: SparkSession, request: pytest.FixtureRequest) -> None:
    url = new_url("file", request)
    settings = SettingsPatch(retention=OutcomeRetention(keep_payload=()))
    at(url, lambda storage: storage.configure("work", settings))
    at(url, lambda storage: storage.enqueue("work", jobs("a")))
    at(url, end_all)

    with pytest.raises(Refused, match="1 outcomes of queue 'work' have no payload"):
        replay(read(spark, "outcomes", url=url), run="monday", url=url)
    with pytest.raises(Refused, match="failed has no column payload"):
        replay(read(spark, "outcomes", url=url).drop("payload"), run="monday", url=url)
