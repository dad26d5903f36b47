"""The write of one partition: batches, calls of the storage at the same time, and rejected rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from attrs import define, field
from pyarrow import fs

from dibs.errors import BatchRefused, OutcomeUnknown, QueueFull, Refused
from dibs.model.check_jobs import CheckedBatch
from dibs.model.limits import LIMITS
from dibs.model.request_columns import RequestColumns
from dibs.model.results import EnqueueResult, EnqueueStatus
from dibs.spark.connection import StorageConnection, absolute_location
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.row_requests import RequestBuilder
from dibs.spark.write_report import PartitionReport
from dibs.storage.abilities import KeySets, ability

#: Seconds before each retry of an enqueue whose reply was lost. Request keys make the retry safe.
RETRY_DELAYS: Final = (0.1, 1.0)


class Enqueued(NamedTuple):
    """The statuses of the rows of a batch, and how many of them an earlier attempt had enqueued."""

    statuses: Sequence[EnqueueStatus]
    repeated: int


class BatchSink(Protocol):
    """A queue that takes the batches of one partition."""

    def enqueue(self, columns: RequestColumns) -> Enqueued:
        """Enqueue the rows that no earlier attempt has enqueued, and retry if the reply is lost.

        Raise QueueFull if the queue is at its `max_waiting` and refuses rows. The next attempt knows the rows
        of the batch that it took, if any. Raise BatchRefused, StorageError or OutcomeUnknown.
        """
        ...


def open_sink(connection: StorageConnection, queue: str, key_prefix: str) -> BatchSink:
    """Return the sink of a partition. Its request keys begin with `key_prefix` and "/"."""
    if (key_sets := ability(connection.storage, KeySets)) is not None:
        return KeySetSink(connection, key_sets, queue, key_prefix)
    return RequestSink(connection, queue, key_prefix)


def _check_room(queue: str, statuses: Sequence[EnqueueStatus]) -> None:
    if full := sum(status == "full" for status in statuses):
        raise QueueFull(
            f"queue {queue!r} has as many waiting jobs as its max_waiting allows, so it did not take "
            f"{full:,} rows; write again later, or raise max_waiting",
            queue=queue,
        )


@define
class RequestSink:
    """Enqueues an object with a request key for each row. Each storage can do this."""

    _connection: StorageConnection
    _queue: str
    _key_prefix: str

    def enqueue(self, columns: RequestColumns) -> Enqueued:
        batch = CheckedBatch.of(columns.requests(self._key_prefix), LIMITS, plain=False)
        results = self._send(batch)
        _check_room(self._queue, [result.status for result in results])
        return Enqueued([result.status for result in results], sum(result.repeated for result in results))

    def _send(self, batch: CheckedBatch) -> Sequence[EnqueueResult]:
        for pause in RETRY_DELAYS:
            try:
                return self._connection.run(self._connection.storage.enqueue(self._queue, batch))
            except OutcomeUnknown:
                time.sleep(pause)
        return self._connection.run(self._connection.storage.enqueue(self._queue, batch))


@define
class KeySetSink:
    """Enqueues columns, and adds the members of their rows to a key set in the same atomic step."""

    _connection: StorageConnection
    _storage: KeySets
    _queue: str
    _name: str
    #: The number of the last batch of the set that this sink has read or written.
    _number: int = field(default=0, init=False)
    #: The members that this sink has read, with the statuses of their rows.
    _stored: dict[bytes, EnqueueStatus] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._read()

    def enqueue(self, columns: RequestColumns) -> Enqueued:
        delays = iter((*RETRY_DELAYS, None))
        while True:
            new = self._missing(columns)
            try:
                statuses = self._send(new)
            except OutcomeUnknown:
                statuses, delay = None, next(delays)
                if delay is None:
                    raise
                time.sleep(delay)
            if statuses is not None:
                return self._combine(columns, new, statuses)
            # Another attempt, or this one without an answer, has written a batch.
            self._read()

    def _missing(self, columns: RequestColumns) -> RequestColumns:
        if not self._stored:
            return columns
        rows = [row for row, member in enumerate(columns.members) if member not in self._stored]
        return columns if len(rows) == len(columns) else columns.take(rows)

    def _send(self, columns: RequestColumns) -> Sequence[EnqueueStatus] | None:
        """Return the statuses, or None if the next number is taken."""
        if not columns:
            return ()
        statuses = self._connection.run(
            self._storage.enqueue_batch(self._queue, self._name, self._number + 1, columns)
        )
        _check_room(self._queue, statuses or ())
        self._number += statuses is not None
        return statuses

    def _combine(
        self, columns: RequestColumns, new: RequestColumns, statuses: Sequence[EnqueueStatus]
    ) -> Enqueued:
        """Return the statuses of all rows. The rows in `new` were enqueued now, the others earlier."""
        if new is columns:
            return Enqueued(statuses, 0)
        sent = dict(zip(new.members, statuses, strict=True))
        return Enqueued(
            [sent.get(member) or self._stored[member] for member in columns.members],
            len(columns) - len(new),
        )

    def _read(self) -> None:
        """Read the batches that were added to the key set."""
        more = True
        while more:
            found, self._number, more = self._connection.run(
                self._storage.read_key_set(self._queue, self._name, after=self._number)
            )
            self._stored.update(found)


#: Rejected rows that are kept in memory before they are written.
FLUSH_ROWS: Final = 1000
_REASON_COLUMNS: Final = (pa.field("reject_field", pa.string()), pa.field("reject_reason", pa.string()))


class RejectsFile:
    """The file of the rejected rows of one task.

    The file is visible after `commit`. A second attempt of the task replaces it.
    """

    def __init__(self, folder: str, name: str, attempt: int) -> None:
        self._system, self._folder = fs.FileSystem.from_uri(absolute_location(folder))
        self._final = f"{self._folder}/{name}.parquet"
        # Spark and Arrow ignore files whose names start with a dot.
        self._temporary = f"{self._folder}/.{name}.{attempt}.parquet"
        self._rows: list[pa.RecordBatch] = []
        self._reasons: list[tuple[str, str]] = []
        self._writer: pq.ParquetWriter | None = None
        self.count: int = 0

    def add(self, batch: pa.RecordBatch, row: int, refused: Refused) -> None:
        """Keep one refused row with the field and the reason of its error, to be written with others."""
        self._rows.append(batch.slice(row, 1))
        self._reasons.append((refused.field, str(refused)))
        self.count += 1
        if len(self._rows) >= FLUSH_ROWS:
            self._flush()

    def commit(self) -> None:
        """Move the file to its final name, if it has rows."""
        if self._rows:
            self._flush()
        if self._writer is not None:
            self._writer.close()
            self._system.move(self._temporary, self._final)

    def abort(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._system.delete_file(self._temporary)

    def _flush(self) -> None:
        table = pa.Table.from_batches(self._rows)
        for index, column in enumerate(_REASON_COLUMNS):
            table = table.append_column(column, pa.array([reason[index] for reason in self._reasons]))
        if self._writer is None:
            self._system.create_dir(self._folder, recursive=True)
            self._writer = pq.ParquetWriter(self._temporary, table.schema, filesystem=self._system)
        self._writer.write_table(table)
        self._rows, self._reasons = [], []


def write_text(location: str, text: str) -> None:
    """Write a small file atomically to a path or URI."""
    system, path = fs.FileSystem.from_uri(absolute_location(location))
    folder = path.rpartition("/")[0]
    if folder:
        system.create_dir(folder, recursive=True)
    with system.open_output_stream(f"{path}.part") as stream:
        stream.write(text.encode())
    system.move(f"{path}.part", path)


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
