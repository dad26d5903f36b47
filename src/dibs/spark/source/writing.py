"""The writers: a DataFrame into a queue once, and a stream into a queue batch by batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace
from pyspark import TaskContext
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from dibs.client.options.ids import new_id
from dibs.errors import ConfigurationError
from dibs.spark.door import Door
from dibs.spark.sent import Sent, report_of
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.rejects import located, write_text
from dibs.spark.source.requests import check_columns
from dibs.spark.source.sending import Task, send

#: Where Spark tells a task which query it belongs to, and which of its batches.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass
class Message(ds.WriterCommitMessage):
    """What a task tells the driver."""

    sent: Sent


def planned(options: WriteOptions, schema: StructType) -> WriteOptions:
    """Look at a write before any task begins; make the place if it is new. Raises Refused, StorageError."""
    check_columns(schema)
    with Door(options.url, new=True):
        pass
    return replace(
        options,
        rejects=options.rejects and located(options.rejects),
        report=options.report and located(options.report),
    )


class Writer(ds.DataSourceArrowWriter):
    """Writes once. It is made where the write is planned, so all tasks and attempts share its run."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = planned(options, schema)
        self._run = options.run or new_id()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Enqueue a partition, in a task."""
        return Message(send(self._options, _task(self._run), iterator))

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
        """Write the report, once all tasks are done."""
        if self._options.report:
            _report(self._options.report, self._options.queue, self._run, messages)


class StreamWriter(ds.DataSourceStreamArrowWriter):
    """Writes the batches of a stream; one that Spark runs again is known by query and number."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = planned(options, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        """Enqueue a partition of a batch, in a task."""
        context = _context()
        query, batch = (context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID))
        if not query or not batch:
            raise ConfigurationError("Spark did not tell this task its query and batch; is this a stream?")
        return Message(send(self._options, _task(f"{query}/{batch}"), iterator))

    def commit(self, messages: Sequence[ds.WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Write the report of a batch."""
        if self._options.report:
            place = f"{self._options.report}/batch-{batchId:09}.json"
            _report(place, self._options.queue, f"batch {batchId}", messages)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise ConfigurationError("rows are written in tasks of Spark, and this is none")
    return context


def _task(run: str) -> Task:
    context = _context()
    return Task(run, context.partitionId(), context.attemptNumber())


def _report(place: str, queue: str, run: str, messages: Sequence[ds.WriterCommitMessage | None]) -> None:
    parts = [message.sent for message in messages if isinstance(message, Message)]
    write_text(place, msgspec.json.encode(report_of(queue, run, parts)).decode() + "\n")
