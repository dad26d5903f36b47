"""The writers of a DataFrame and of a stream: Spark calls `write` in each task and `commit` at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.client.options.arguments import new_id
from dibs.errors import ConfigurationError
from dibs.spark.connection import StorageConnection
from dibs.spark.executors import Shipped, freeze_imports
from dibs.spark.source.options import WriteOptions, write_options_at
from dibs.spark.source.partition_writer import WriteTask, write_partition, write_text
from dibs.spark.source.row_requests import check_columns
from dibs.spark.write_report import PartitionReport, sum_reports

#: Local properties of a Spark task: the id of its streaming query and the number of its micro-batch.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@frozen
class CommitMessage(ds.WriterCommitMessage):
    """The message with the report of a task that Spark sends to the driver."""

    report: PartitionReport


def check_write(options: WriteOptions, schema: StructType) -> None:
    """Check the columns, and open the storage, creating it if it is new. Raise Refused or StorageError."""
    check_columns(schema)
    with StorageConnection(options.url, create=True):
        pass
    freeze_imports()


class BatchWriter(Shipped, ds.DataSourceArrowWriter):
    """The writer of a DataFrame.

    Spark creates it when it plans the write and pickles it to the tasks, so all attempts have the same run.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write(options, schema)
        self._options = options
        self._run = options.run or new_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Enqueue the rows of a partition. Called in a task."""
        return _write(self._options, self._run, iterator)

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Write the report file, after all tasks succeeded."""
        if self._options.report:
            _write_report(self._options.report, self._options.queue, self._run, messages)


class StreamWriter(Shipped, ds.DataSourceStreamArrowWriter):
    """The writer of a stream.

    A repeated micro-batch has the same query id and number, and so the same request keys.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Enqueue the rows of a partition of a micro-batch. Called in a task."""
        context = _current_task_context()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if not query or not batch:
            raise ConfigurationError(
                f"the local properties {QUERY_ID} and {BATCH_ID} are missing in this task; use writeStream"
            )
        return _write(self._options, f"{query}/{batch}", iterator)

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write the report file of a micro-batch."""
        if self._options.report:
            path = f"{self._options.report}/batch-{batchId:09}.json"
            _write_report(path, self._options.queue, f"batch {batchId}", messages)


def _current_task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("rows can only be written in a Spark task; call DataFrame.write")
    return context


def write_in_task(batches: Iterator[pa.RecordBatch], options: dict[str, str], run: str) -> bytes:
    """Enqueue the rows of a partition of `enqueue(df, ...)` in its task, and return the report as JSON."""
    parsed = write_options_at(options["url"], options)
    report = _write(parsed, run, batches).report
    return msgspec.json.encode(sum_reports(parsed.queue, run, [report]))


def _write(options: WriteOptions, run: str, batches: Iterator[pa.RecordBatch]) -> CommitMessage:
    context = _current_task_context()
    task = WriteTask(run, context.partitionId(), context.attemptNumber())
    report = write_partition(options, task, batches)
    freeze_imports()
    return CommitMessage(report)


def _write_report(path: str, queue: str, run: str, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
    parts = [message.report for message in messages if isinstance(message, CommitMessage)]
    write_text(path, msgspec.json.encode(sum_reports(queue, run, parts)).decode() + "\n")
