"""The writers: a DataFrame into a queue once, and a stream into a queue batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.client.options.ids import new_id
from dibs.errors import ConfigurationError
from dibs.spark.connection import StorageConnection
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.partition_writer import WriteTask, write_partition
from dibs.spark.source.rejects import write_text
from dibs.spark.source.row_requests import check_columns
from dibs.spark.write_report import PartitionReport, sum_reports

#: Where Spark tells a task which query it belongs to, and which of its batches.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@frozen
class CommitMessage(ds.WriterCommitMessage):
    """What a task tells the driver."""

    report: PartitionReport


def check_write(options: WriteOptions, schema: StructType) -> None:
    """Look at a write before any task begins; make the place if it is new. Raises Refused, StorageError."""
    check_columns(schema)
    with StorageConnection(options.url, create=True):
        pass


class BatchWriter(ds.DataSourceArrowWriter):
    """Writes once. It is made where the write is planned, so all tasks and attempts share its run."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write(options, schema)
        self._options = options
        self._run = options.run or new_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Enqueue a partition, in a task."""
        return CommitMessage(write_partition(self._options, _task(self._run), iterator))

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Write the report, once all tasks are done."""
        if self._options.report:
            _write_report(self._options.report, self._options.queue, self._run, messages)


class StreamWriter(ds.DataSourceStreamArrowWriter):
    """Writes the batches of a stream; one that Spark runs again is known by query and number."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_write(options, schema)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> CommitMessage:
        """Enqueue a partition of a batch, in a task."""
        context = _context()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if not query or not batch:
            raise ConfigurationError("Spark did not tell this task its query and batch; is this a stream?")
        return CommitMessage(write_partition(self._options, _task(f"{query}/{batch}"), iterator))

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write the report of a batch."""
        if self._options.report:
            path = f"{self._options.report}/batch-{batchId:09}.json"
            _write_report(path, self._options.queue, f"batch {batchId}", messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("rows are written in tasks of Spark, and this is none")
    return context


def _task(run: str) -> WriteTask:
    context = _context()
    return WriteTask(run, context.partitionId(), context.attemptNumber())


def _write_report(path: str, queue: str, run: str, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
    parts = [message.report for message in messages if isinstance(message, CommitMessage)]
    write_text(path, msgspec.json.encode(sum_reports(queue, run, parts)).decode() + "\n")
