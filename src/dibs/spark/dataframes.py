"""Read and write DataFrames: tables, streams, enqueues, and the replay of failed jobs.

Unlike the data source itself, `read` and `enqueue` work for a storage that exists only in the driver's
process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dibs.client.connection.storage_handle import resolve_url
from dibs.client.options.arguments import Seconds, duration_ms, new_id
from dibs.errors import Refused
from dibs.model.requests import OnConflict, Reject, SettingsPatch
from dibs.spark.connection import StorageConnection, absolute_location, is_shared, run_in_thread, shared_url
from dibs.spark.executors import count_slots, map_partitions
from dibs.spark.java import require_pyspark, session
from dibs.spark.write_report import WriteReport, sum_reports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def read(
    source: SparkSession | str | Path,
    table: str,
    *,
    url: str | None = None,
    columns: Sequence[str] | None = None,
    **options: str,
) -> DataFrame:
    """Return a table as a DataFrame: jobs, outcomes, events or runs of a storage, or one of a warehouse.

    With a Spark session as `source`, the table is one of the storage at `url`. With the location of a
    warehouse, a path or a URL, it is events, runs, metrics, ids or live, read in
    the active Spark session; the warehouse has no options.

    `columns` are the columns to read, by default all. Spark tells a data source in Python no columns, so a
    `select` on the DataFrame reads and discards the others.

    Payloads and results come as bytes and as JSON texts. `from_json` of Spark makes typed columns of texts:

        read(spark, "jobs").select("id", f.from_json("payload_json", "to string, lines array<int>"))

    `options` are the options of the data source. Filters are pushed down to the storage if the Spark session
    allows it. The ids or the log of a queue are read in as many partitions as Spark runs tasks at once. A
    storage in the memory of this process is read completely, before this function returns. Raise Refused or
    StorageError.
    """
    require_pyspark()
    if isinstance(source, (str, Path)):
        frame = _read_warehouse(source, table, {**({} if url is None else {"url": url}), **options})
        return frame if columns is None else frame.select(*columns)
    return _read_storage(source, table, resolve_url(url), columns, options)


def _read_storage(
    spark: SparkSession,
    table: str,
    storage_url: str,
    columns: Sequence[str] | None,
    options: dict[str, str],
) -> DataFrame:
    from dibs.spark.schemas import select_columns, struct_type  # noqa: PLC0415 - with pyspark

    schema = None if columns is None else select_columns(table, columns)
    if not is_shared(storage_url):
        rows = run_in_thread(lambda: _read_in_driver(storage_url, {"table": table, **options}))
        # Spark Connect infers no schema of a table without rows.
        frame = spark.createDataFrame(rows, struct_type(table))
        return frame if schema is None else frame.select(*schema.names)
    pushdown = spark.conf.get(_PUSHDOWN, "false") or "false"
    # Make the path absolute: this process may have changed its working directory since the session started.
    storage_url = shared_url(storage_url)
    defaults = {"pushdown": pushdown, "partitions": str(count_slots(spark))}
    reader = spark.read.format("dibs").options(**{**defaults, **options}, url=storage_url, table=table)
    return (reader if schema is None else reader.schema(schema)).load()


def read_stream(
    spark: SparkSession,
    table: str = "events",
    *,
    url: str | None = None,
    **options: str,
) -> DataFrame:
    """Return the table events or runs as a streaming DataFrame, which follows the logs of the queues.

    `options` are the options of a stream.
    Raise Refused for an invalid option and for a table that cannot be streamed;
    `spark.readStream.format("dibs")` raises the same error only when the query starts, because Spark does not
    tell a data source whether `load` is for a stream.
    """
    require_pyspark()
    from dibs.spark.source.options import stream_options  # noqa: PLC0415 - these modules import pyspark

    raw = {**options, "table": table, "url": shared_url(url)}
    stream_options(raw)
    return spark.readStream.format("dibs").options(**raw).load()


def _read_warehouse(warehouse: str | Path, table: str, options: dict[str, str]) -> DataFrame:
    from dibs.spark.history.spark_engine import table_frame  # noqa: PLC0415 - needs pyspark

    for name in options:
        raise Refused(f"a warehouse has no option {name!r}; filter the DataFrame instead", field=name)
    return table_frame(session(), warehouse, table)


def enqueue(
    df: DataFrame,
    queue: str,
    *,
    url: str | None = None,
    on_conflict: OnConflict | None = None,
    rejects: str | Path | None = None,
    run: str | None = None,
) -> WriteReport:
    """Enqueue the rows of a DataFrame and return a report.

    Required is a column `data` (written as JSON) or `payload` (bytes). Optional columns are id, run_at,
    priority, attributes, key and on_conflict; the column on_conflict overrides the argument.

    Invalid rows are written to `rejects` as Parquet files. Without `rejects`, the first invalid row fails
    the write before any row of its partition is sent. If an earlier write had the same `run`, its rows are
    not enqueued again, as long as the queue remembers request keys. Raise Refused for invalid columns or
    options. An error in a task is raised as Spark's own error, with its message.
    """
    require_pyspark()
    storage_url = resolve_url(url)
    options = {"url": shared_url(storage_url) if is_shared(storage_url) else storage_url, "queue": queue}
    if on_conflict is not None:
        options["on_conflict"] = msgspec.json.encode(on_conflict).decode()
    if rejects is not None:
        options["rejects"] = absolute_location(str(rejects))
    if run is not None:
        options["run"] = run
        df = _partition_by_row(df)
    return _enqueue(df, options, in_tasks=is_shared(storage_url))


def _partition_by_row(df: DataFrame) -> DataFrame:
    """Return the rows so that the id of a row, or its content, decides its partition.

    A request key holds the number of its partition. So a write that is repeated on other cores, or with other
    partitions of its input, finds its keys again.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    keys = [f.to_json(f.struct(name)) for name in ("data", "payload") if name in df.columns]
    if "id" in df.columns:
        keys.insert(0, f.col("id").cast("string"))
    # The writer refuses a DataFrame without these columns.
    return df.repartition(PARTITIONS, f.coalesce(*keys)) if keys else df


def _enqueue(df: DataFrame, options: dict[str, str], *, in_tasks: bool) -> WriteReport:
    """Write the rows in Spark's tasks, or here, for a storage in the memory of this process."""
    from dibs.spark.source import writers  # noqa: PLC0415 - these modules import pyspark
    from dibs.spark.source.options import write_options_at  # noqa: PLC0415
    from dibs.spark.source.partition_writer import WriteTask, write_partition  # noqa: PLC0415

    parsed = write_options_at(options["url"], options)
    run, schema = parsed.run or new_id(), df.schema
    run_in_thread(lambda: writers.check_write(parsed, schema))
    if in_tasks:
        name = f"{writers.__name__}:{writers.write_in_task.__name__}"
        answers = map_partitions(df, name, options, run)
        parts = [msgspec.json.decode(answer, type=WriteReport) for answer in answers]
    else:
        task = WriteTask(run, 0, 0)
        part = run_in_thread(lambda: write_partition(parsed, task, df.toArrow().to_batches()))
        parts = [sum_reports(parsed.queue, run, [part])]
    return sum_reports(parsed.queue, run, parts)


def _read_in_driver(url: str, options: dict[str, str]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    from dibs.spark.schemas import arrow_schema, struct_type  # noqa: PLC0415
    from dibs.spark.source.batch_reader import TableReader  # noqa: PLC0415
    from dibs.spark.source.options import read_options_at  # noqa: PLC0415

    parsed = read_options_at(url, options)
    reader = TableReader(parsed, struct_type(parsed.table))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, schema=arrow_schema(parsed.table))


#: A week: a pipeline that fails on a Friday is repeated on Monday.
WEEK: Final = 7 * 24 * 3600
#: Partitions of a write with a name, a fixed number: a request key holds the number of its partition.
PARTITIONS: Final = 16
#: Columns of `outcomes` that a job keeps when it is enqueued again.
_COLUMNS: Final = ("id", "payload", "attributes", "priority", "key")


def replay(
    failed: DataFrame,
    *,
    run: str,
    fix: Callable[[DataFrame], DataFrame] | None = None,
    url: str | None = None,
    remember: Seconds = WEEK,
) -> list[WriteReport]:
    """Enqueue failed jobs again, and return a report for each queue.

    `failed` has rows of the table `outcomes`, with the columns queue, id, payload, attributes, priority and
    key.
    `fix` is called with the DataFrame of one queue, and returns one with the columns of `enqueue`; without
    `fix`, the jobs are enqueued as they were. Each keeps its id. A live job and a completed outcome of the id
    stay unchanged.

    With the same `run`, a call that is repeated adds no job twice for `remember` seconds, a week by default:
    the setting `request_key_age` of each queue is raised to this, if it is shorter. Raise Refused for
    missing columns, and for rows whose outcome did not keep the data of its job.
    """
    require_pyspark()
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    storage_url = shared_url(resolve_url(url))
    age = duration_ms("remember", remember)
    queues = _queues_of(failed)
    run_in_thread(lambda: _raise_key_age(storage_url, queues, age))
    reports = []
    for queue in queues:
        rows = failed.where(f.col("queue") == queue).select(*_COLUMNS)
        mended = rows if fix is None else fix(rows)
        reports.append(enqueue(mended, queue, url=storage_url, on_conflict=Reject(), run=run))
    return reports


def _queues_of(failed: DataFrame) -> list[str]:
    """Return the queues of the rows. Raise Refused if a column or a payload is missing."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    if missing := [name for name in ("queue", *_COLUMNS) if name not in failed.columns]:
        raise Refused(f"failed has no column {', '.join(missing)}; read the table outcomes", field="failed")
    lost = f.count_if(f.col("payload").isNull()).alias("lost")
    found = sorted((row.queue, row.lost) for row in failed.groupBy("queue").agg(lost).collect())
    for queue, number in found:
        if number:
            raise Refused(
                f"{number} outcomes of queue {queue!r} have no payload, as the retention keeps them without "
                "data. Set keep_payload of the retention, or leave these rows out",
                field="failed",
            )
    return [queue for queue, _ in found]


def _raise_key_age(url: str, queues: Sequence[str], age: int) -> None:
    """Raise the setting request_key_age of the queues to `age` ms, where it is shorter."""
    with StorageConnection(url) as connection:
        for info in connection.run(connection.storage.queues()):
            if info.name in queues and info.settings.request_key_age < age:
                patch = SettingsPatch(request_key_age=age)
                connection.run(connection.storage.configure(info.name, patch))
