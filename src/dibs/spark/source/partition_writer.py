"""The work of one task of a write: it makes requests of its rows and enqueues them in batches."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Final, NamedTuple

import msgspec
import pyarrow as pa

from dibs.errors import BatchRefused, Refused
from dibs.model.limits import LIMITS
from dibs.model.request_columns import RequestColumns
from dibs.spark.connection import StorageConnection
from dibs.spark.source.batch_sinks import BatchSink, open_sink
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.rejects import RejectsFile
from dibs.spark.source.row_requests import RequestBuilder
from dibs.spark.write_report import PartitionReport

#: Maximum payload bytes in one call of the storage; a batch also has at most LIMITS.batch items.
MAX_CALL_BYTES: Final = 8 * 1024 * 1024
#: Bytes of a partition kept as columns while all its rows are validated; the next ones are encoded.
KEPT_BYTES: Final = 32 * 1024 * 1024
#: Bytes of encoded requests kept in memory. Larger partitions spill to disk.
SPOOL_MEMORY_BYTES: Final = 32 * 1024 * 1024
#: Bytes of memory of a request, without its payload: three Python objects, and places in lists.
_REQUEST_BYTES: Final = 300

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(RequestColumns).decode
_HEADER_BYTES: Final = 8


class WriteTask(NamedTuple):
    """The identity of one attempt of one task of a write."""

    run: str
    partition: int
    attempt: int

    @property
    def name(self) -> str:
        """The name of the task's files, equal for all attempts."""
        return f"{self.run.replace('/', '-')}-part-{self.partition:05}"

    @property
    def key_prefix(self) -> str:
        """The start of the request keys of the task's rows, equal for all attempts."""
        return f"{self.run}/{self.partition}"


def write_partition(
    options: WriteOptions, task: WriteTask, batches: Iterable[pa.RecordBatch]
) -> PartitionReport:
    """Enqueue the rows of a partition.

    With the option `rejects`, invalid rows are written there. Without it, the first invalid row raises
    Refused before any row is sent.
    """
    rows = RequestBuilder(task.key_prefix, options.on_conflict)
    with StorageConnection(options.url) as connection:
        sink = open_sink(connection, options.queue, task.key_prefix)
        if options.rejects is None:
            return _write_all_or_none(sink, rows, task, batches)
        rejects = RejectsFile(options.rejects, task.name, task.attempt)
        try:
            report = _write_valid_rows(sink, rows, rejects, batches)
        except BaseException:
            rejects.abort()
            raise
        rejects.commit()
        return report


def _write_all_or_none(
    sink: BatchSink, rows: RequestBuilder, task: WriteTask, batches: Iterable[pa.RecordBatch]
) -> PartitionReport:
    report = PartitionReport()
    kept: list[RequestColumns] = []
    free = KEPT_BYTES
    with tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as spool:
        for columns in _valid_columns(rows, task, batches):
            # Small partitions stay as they are, which saves encoding and decoding.
            free -= sum(map(len, columns.payloads)) + _REQUEST_BYTES * len(columns)
            if free >= 0:
                kept.append(columns)
            else:
                _write_to_spool(spool, columns)
        spool.seek(0)
        for columns in kept:
            _enqueue(sink, columns, report)
        for columns in _read_spool(spool):
            _enqueue(sink, columns, report)
    return report


def _valid_columns(
    rows: RequestBuilder, task: WriteTask, batches: Iterable[pa.RecordBatch]
) -> Iterator[RequestColumns]:
    before = 0
    for batch in batches:
        found = rows.convert(batch)
        if found.refused:
            row, refused = found.refused[0]
            raise Refused(
                f"row {before + row} of partition {task.partition}: {refused}. No row of this partition was "
                "sent. Set option rejects to write invalid rows to files instead",
                field=refused.field,
                index=before + row,
            )
        before += batch.num_rows
        yield found.columns


def _write_to_spool(spool: IO[bytes], columns: RequestColumns) -> None:
    raw = _encode(columns)
    spool.write(len(raw).to_bytes(_HEADER_BYTES))
    spool.write(raw)


def _read_spool(spool: IO[bytes]) -> Iterator[RequestColumns]:
    while size := spool.read(_HEADER_BYTES):
        yield _decode(spool.read(int.from_bytes(size)))


def _write_valid_rows(
    sink: BatchSink, rows: RequestBuilder, rejects: RejectsFile, batches: Iterable[pa.RecordBatch]
) -> PartitionReport:
    report = PartitionReport()
    for batch in batches:
        found = rows.convert(batch)
        for row, refused in found.refused:
            rejects.add(batch, row, refused)
        for start, stop in _split_into_calls(found.columns):
            columns, indexes = found.columns.slice(start, stop), found.rows[start:stop]
            # A storage may have stricter limits than LIMITS.
            while bad := _enqueue_accepted(sink, columns, report):
                for place, refused in bad.items():
                    rejects.add(batch, indexes[place], refused)
                good = [place for place in range(len(columns)) if place not in bad]
                columns, indexes = columns.take(good), [indexes[place] for place in good]
    report.rejected = rejects.count
    report.rows += rejects.count
    return report


def _enqueue_accepted(
    sink: BatchSink, columns: RequestColumns, report: PartitionReport
) -> dict[int, Refused]:
    """Enqueue requests, or return those that the storage refuses: index -> reason. Then none is enqueued."""
    try:
        if columns:
            report.add(*sink.enqueue(columns))
    except BatchRefused as refused:
        bad = {
            each.index: each
            for each in refused.exceptions
            if isinstance(each, Refused) and each.index is not None
        }
        if not bad:
            raise
        return bad
    return {}


def _enqueue(sink: BatchSink, columns: RequestColumns, report: PartitionReport) -> None:
    for start, stop in _split_into_calls(columns):
        report.add(*sink.enqueue(columns.slice(start, stop)))


def _split_into_calls(columns: RequestColumns) -> Iterator[tuple[int, int]]:
    """Yield the start and the stop of requests that fit into one call of the storage."""
    start = size = 0
    for number, payload in enumerate(columns.payloads):
        if number - start >= LIMITS.batch or (number > start and size + len(payload) > MAX_CALL_BYTES):
            yield start, number
            start, size = number, 0
        size += len(payload)
    if start < len(columns):
        yield start, len(columns)
