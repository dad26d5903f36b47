"""Reading and writing in one call, also for a storage that lives in the driver alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from dibs.client.connection.url import resolve_url
from dibs.client.options.ids import new_id
from dibs.model.requests import OnConflict
from dibs.spark.door import aside, is_shared, place_of
from dibs.spark.java import require_pyspark
from dibs.spark.sent import WriteReport, report_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"


def read(spark: SparkSession, table: str, *, url: str | None = None, **options: str) -> DataFrame:
    """Return a table as a DataFrame: jobs, outcomes, events or runs; `options` as of the data source.

    Filters are handed down where the session lets sources have them, and the ids or the log of a queue are
    read in as many parts as Spark runs tasks at once. A storage that lives in this process is read here and
    now, whole. Raises Refused, StorageError.
    """
    require_pyspark()
    place = resolve_url(url)
    if not is_shared(place):
        return spark.createDataFrame(aside(lambda: _read_here(place, {"table": table, **options})))
    pushdown = spark.conf.get(_PUSHDOWN, "false") or "false"
    # Spark's processes stay in the folder where the session was started, this one may have left it.
    place = place_of(place)
    own = {"pushdown": pushdown, "partitions": str(spark.sparkContext.defaultParallelism)}
    reader = spark.read.format("dibs").options(**{**own, **options}, url=place, table=table)
    return reader.load()


def enqueue(
    df: DataFrame,
    queue: str,
    *,
    url: str | None = None,
    on_conflict: OnConflict | None = None,
    rejects: str | Path | None = None,
    run: str | None = None,
) -> WriteReport:
    """Enqueue the rows of a DataFrame and return what became of them.

    Columns: `data` (written as JSON) or `payload` (bytes), and if wanted id, run_at, priority, attributes
    and on_conflict, which for its row wins over the argument. Bad rows go to `rejects` as Parquet; without
    it the first one fails the write, before any row of its partition is sent. Rows of an earlier write with
    the same `run` are known again for as long as the queue remembers request keys. Raises Refused for
    columns or options; what fails in a task comes out as Spark's own error with its message.
    """
    require_pyspark()
    from dibs.spark.source.rejects import located  # noqa: PLC0415 - needs pyarrow

    place = resolve_url(url)
    options = {"url": place_of(place) if is_shared(place) else place, "queue": queue}
    if on_conflict is not None:
        options["on_conflict"] = msgspec.json.encode(on_conflict).decode()
    if rejects is not None:
        options["rejects"] = located(str(rejects))
    if run is not None:
        options["run"] = run
    return _enqueue_here(df, options) if not is_shared(place) else _enqueue_there(df, options)


def _enqueue_there(df: DataFrame, options: dict[str, str]) -> WriteReport:
    # Written where the write is committed, which is on the driver's machine.
    with tempfile.TemporaryDirectory(prefix="dibs-report-") as folder:
        report = Path(folder, "report.json")
        df.write.format("dibs").mode("append").options(**options, report=str(report)).save()
        return msgspec.json.decode(report.read_bytes(), type=WriteReport)


# -- a storage that lives in this process ------------------------------------------------------------


def _enqueue_here(df: DataFrame, options: dict[str, str]) -> WriteReport:
    from dibs.spark.source.options import write_options_at  # noqa: PLC0415 - what needs pyspark, here and below
    from dibs.spark.source.requests import check_columns  # noqa: PLC0415
    from dibs.spark.source.sending import Task, send  # noqa: PLC0415

    wanted = write_options_at(options["url"], options)
    check_columns(df.schema)
    run = wanted.run or new_id()
    sent = aside(lambda: send(wanted, Task(run, 0, 0), df.toArrow().to_batches()))
    return report_of(wanted.queue, run, [sent])


def _read_here(url: str, options: dict[str, str]) -> pa.Table:
    import pyarrow as pa  # noqa: PLC0415

    from dibs.spark.schemas import arrow_schema, struct_type  # noqa: PLC0415
    from dibs.spark.source.options import read_options_at  # noqa: PLC0415
    from dibs.spark.source.reading import Reader  # noqa: PLC0415

    wanted = read_options_at(url, options)
    reader = Reader(wanted, struct_type(wanted.table))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return pa.Table.from_batches(batches, schema=arrow_schema(wanted.table))
