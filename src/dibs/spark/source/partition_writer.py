"""The work of one task of a write: it makes requests of its rows and enqueues them in batches."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dibs.errors import BatchRefused, OutcomeUnknown, Refused
from dibs.model.limits import LIMITS
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.spark.connection import StorageConnection
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.rejects import RejectsFile
from dibs.spark.source.row_requests import RequestBuilder
from dibs.spark.write_report import PartitionReport

T = TypeVar("T")

#: Maximum payload bytes in one call of the storage; a batch also has at most LIMITS.batch items.
MAX_CALL_BYTES: Final = 8 * 1024 * 1024
#: Bytes of a partition kept as requests while all its rows are validated; the next ones are encoded.
KEPT_BYTES: Final = 32 * 1024 * 1024
#: Bytes of encoded requests kept in memory. Larger partitions spill to disk.
SPOOL_MEMORY_BYTES: Final = 32 * 1024 * 1024
#: Bytes of memory of a request, without its payload: eight Python objects.
_REQUEST_BYTES: Final = 1000
#: Seconds before each retry of an enqueue whose reply was lost. Request keys make the retry safe.
RETRY_DELAYS: Final = (0.1, 1.0)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[EnqueueRequest]).decode
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


class RowRequest(NamedTuple):
    """An enqueue request, with the batch and the index of the row it was made from."""

    request: EnqueueRequest
    batch: pa.RecordBatch
    row: int


def write_partition(
    options: WriteOptions, task: WriteTask, batches: Iterable[pa.RecordBatch]
) -> PartitionReport:
    """Enqueue the rows of a partition.

    With the option `rejects`, invalid rows are written there. Without it, the first invalid row raises
    Refused before any row is sent.
    """
    rows = RequestBuilder(task.run, task.partition, options.on_conflict)
    with StorageConnection(options.url) as connection:
        if options.rejects is None:
            return _write_all_or_none(connection, options.queue, rows, task, batches)
        rejects = RejectsFile(options.rejects, task.name, task.attempt)
        try:
            report = _write_valid_rows(connection, options.queue, rows, rejects, batches)
        except BaseException:
            rejects.abort()
            raise
        rejects.commit()
        return report


def _write_all_or_none(
    connection: StorageConnection,
    queue: str,
    rows: RequestBuilder,
    task: WriteTask,
    batches: Iterable[pa.RecordBatch],
) -> PartitionReport:
    report = PartitionReport()
    kept: list[list[EnqueueRequest]] = []
    free = KEPT_BYTES
    with tempfile.SpooledTemporaryFile(SPOOL_MEMORY_BYTES) as spool:
        for requests in _split_into_batches(_valid_requests(rows, task, batches), _payload_size):
            # Small partitions stay as they are, which saves encoding and decoding each request.
            free -= sum(_payload_size(each) + _REQUEST_BYTES for each in requests)
            if free >= 0:
                kept.append(requests)
            else:
                _write_to_spool(spool, requests)
        spool.seek(0)
        for requests in kept:
            _add_results(report, enqueue(connection, queue, requests))
        while requests := _read_from_spool(spool):
            _add_results(report, enqueue(connection, queue, requests))
    return report


def _valid_requests(
    rows: RequestBuilder, task: WriteTask, batches: Iterable[pa.RecordBatch]
) -> Iterator[EnqueueRequest]:
    number = 0
    for batch in batches:
        for request in rows.requests(batch):
            if isinstance(request, Refused):
                raise Refused(
                    f"row {number} of partition {task.partition}: {request}. No row of this partition was "
                    "sent. Set option rejects to write invalid rows to files instead",
                    field=request.field,
                    index=number,
                )
            number += 1
            yield request


def _write_to_spool(spool: IO[bytes], requests: list[EnqueueRequest]) -> None:
    raw = _encode(requests)
    spool.write(len(raw).to_bytes(_HEADER_BYTES))
    spool.write(raw)


def _read_from_spool(spool: IO[bytes]) -> list[EnqueueRequest]:
    size = spool.read(_HEADER_BYTES)
    return _decode(spool.read(int.from_bytes(size))) if size else []


def _write_valid_rows(
    connection: StorageConnection,
    queue: str,
    rows: RequestBuilder,
    rejects: RejectsFile,
    batches: Iterable[pa.RecordBatch],
) -> PartitionReport:
    report = PartitionReport()
    for items in _split_into_batches(
        _valid_rows(rows, rejects, batches), lambda item: _payload_size(item.request)
    ):
        _add_results(report, _enqueue_accepted(connection, queue, items, rejects))
    report.rejected = rejects.count
    report.rows += rejects.count
    return report


def _valid_rows(
    rows: RequestBuilder, rejects: RejectsFile, batches: Iterable[pa.RecordBatch]
) -> Iterator[RowRequest]:
    for batch in batches:
        for row, request in enumerate(rows.requests(batch)):
            if isinstance(request, Refused):
                rejects.add(batch, row, request)
            else:
                yield RowRequest(request, batch, row)


def _enqueue_accepted(
    connection: StorageConnection, queue: str, items: list[RowRequest], rejects: RejectsFile
) -> list[EnqueueResult]:
    """Enqueue the requests that the storage accepts. A storage may have stricter limits than LIMITS."""
    try:
        return enqueue(connection, queue, [item.request for item in items])
    except BatchRefused as refused:
        bad = {each.index: each for each in refused.exceptions if isinstance(each, Refused)}
    for index, reason in bad.items():
        if index is not None:
            rejects.add(items[index].batch, items[index].row, reason)
    good = [item.request for index, item in enumerate(items) if index not in bad]
    return enqueue(connection, queue, good) if good else []


def enqueue(connection: StorageConnection, queue: str, requests: list[EnqueueRequest]) -> list[EnqueueResult]:
    """Enqueue one batch, and retry if the reply is lost.

    Raise BatchRefused, StorageError or OutcomeUnknown.
    """
    for pause in RETRY_DELAYS:
        try:
            return list(connection.run(connection.storage.enqueue(queue, requests)))
        except OutcomeUnknown:
            time.sleep(pause)
    return list(connection.run(connection.storage.enqueue(queue, requests)))


def _add_results(report: PartitionReport, results: list[EnqueueResult]) -> None:
    report.rows += len(results)
    report.statuses.update(result.status for result in results)
    report.repeated += sum(result.repeated for result in results)


def _payload_size(request: EnqueueRequest) -> int:
    return len(request.job.data.payload)


def _split_into_batches(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield lists of items that fit into one call of the storage."""
    group: list[T] = []
    size = 0
    for item in items:
        if group and (len(group) >= LIMITS.batch or size + size_of(item) > MAX_CALL_BYTES):
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group
