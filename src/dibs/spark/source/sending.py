"""What one task of a write does: rows become requests, and go to the storage in batches."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from dibs.errors import BatchRefused, OutcomeUnknown, Refused
from dibs.model.limits import LIMITS
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.spark.door import Door
from dibs.spark.sent import Sent
from dibs.spark.source.options import WriteOptions
from dibs.spark.source.rejects import Rejects
from dibs.spark.source.requests import Rows

T = TypeVar("T")

#: Bytes of payloads in one call of the storage; a batch has at most LIMITS.batch items as well.
SENT_BYTES: Final = 8 * 1024 * 1024
#: Bytes of a partition that are kept in memory while its rows are looked at, before they go to disk.
SPOOLED: Final = 64 * 1024 * 1024
#: Seconds before a call whose reply was lost is repeated: each row is known again, so that adds nothing.
AGAIN: Final = (0.1, 1.0)

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[EnqueueRequest]).decode
_SIZE: Final = 8


class Task(NamedTuple):
    """Which task of which write this is."""

    run: str
    partition: int
    attempt: int

    @property
    def name(self) -> str:
        """What its files are called: the same for each attempt."""
        return f"{self.run.replace('/', '-')}-part-{self.partition:05}"


class Item(NamedTuple):
    """A request, and the row it was made of."""

    request: EnqueueRequest
    batch: pa.RecordBatch
    row: int


def send(options: WriteOptions, task: Task, batches: Iterable[pa.RecordBatch]) -> Sent:
    """Enqueue the rows of a partition.

    With `rejects`, bad rows go there; else the first bad row raises Refused, before any row was sent.
    """
    rows = Rows(task.run, task.partition, options.on_conflict)
    with Door(options.url) as door:
        if options.rejects is None:
            return _send_all(door, options.queue, rows, task, batches)
        rejects = Rejects(options.rejects, task.name, task.attempt)
        try:
            sent = _send_good(door, options.queue, rows, rejects, batches)
        except BaseException:
            rejects.discard()
            raise
        rejects.keep()
        return sent


def _send_all(door: Door, queue: str, rows: Rows, task: Task, batches: Iterable[pa.RecordBatch]) -> Sent:
    sent = Sent()
    statuses: Counter[str] = Counter()
    with tempfile.SpooledTemporaryFile(SPOOLED) as spool:
        for requests in _grouped(_checked(rows, task, batches), _size):
            _put(spool, requests)
        spool.seek(0)
        while requests := _taken(spool):
            _count(sent, statuses, enqueue(door, queue, requests))
    sent.statuses = dict(statuses)
    return sent


def _checked(rows: Rows, task: Task, batches: Iterable[pa.RecordBatch]) -> Iterator[EnqueueRequest]:
    number = 0
    for batch in batches:
        for request in rows.requests(batch):
            if isinstance(request, Refused):
                raise Refused(
                    f"row {number} of partition {task.partition}: {request}. Nothing of this partition was "
                    "sent; option rejects would set such rows aside",
                    field=request.field,
                    index=number,
                )
            number += 1
            yield request


def _put(spool: IO[bytes], requests: list[EnqueueRequest]) -> None:
    raw = _encode(requests)
    spool.write(len(raw).to_bytes(_SIZE))
    spool.write(raw)


def _taken(spool: IO[bytes]) -> list[EnqueueRequest]:
    size = spool.read(_SIZE)
    return _decode(spool.read(int.from_bytes(size))) if size else []


def _send_good(
    door: Door, queue: str, rows: Rows, rejects: Rejects, batches: Iterable[pa.RecordBatch]
) -> Sent:
    sent = Sent()
    statuses: Counter[str] = Counter()
    for items in _grouped(_good(rows, rejects, batches), lambda item: _size(item.request)):
        _count(sent, statuses, _enqueue_good(door, queue, items, rejects))
    sent.statuses, sent.rejected = dict(statuses), rejects.number
    sent.rows += rejects.number
    return sent


def _good(rows: Rows, rejects: Rejects, batches: Iterable[pa.RecordBatch]) -> Iterator[Item]:
    for batch in batches:
        for row, request in enumerate(rows.requests(batch)):
            if isinstance(request, Refused):
                rejects.add(batch, row, request)
            else:
                yield Item(request, batch, row)


def _enqueue_good(door: Door, queue: str, items: list[Item], rejects: Rejects) -> list[EnqueueResult]:
    """Enqueue what the storage takes: one opened with limits of its own may refuse what passed ours."""
    try:
        return enqueue(door, queue, [item.request for item in items])
    except BatchRefused as refused:
        bad = {each.index: each for each in refused.exceptions if isinstance(each, Refused)}
    for place, reason in bad.items():
        if place is not None:
            rejects.add(items[place].batch, items[place].row, reason)
    good = [item.request for place, item in enumerate(items) if place not in bad]
    return enqueue(door, queue, good) if good else []


def enqueue(door: Door, queue: str, requests: list[EnqueueRequest]) -> list[EnqueueResult]:
    """Enqueue one batch; if its reply is lost, again. Raises BatchRefused, StorageError, OutcomeUnknown."""
    for pause in AGAIN:
        try:
            return list(door.ask(door.storage.enqueue(queue, requests)))
        except OutcomeUnknown:
            time.sleep(pause)
    return list(door.ask(door.storage.enqueue(queue, requests)))


def _count(sent: Sent, statuses: Counter[str], answers: list[EnqueueResult]) -> None:
    sent.rows += len(answers)
    statuses.update(answer.status for answer in answers)
    sent.repeated += sum(answer.repeated for answer in answers)


def _size(request: EnqueueRequest) -> int:
    return len(request.job.data.payload)


def _grouped(items: Iterable[T], size_of: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield items in lists that one call of a storage takes."""
    group: list[T] = []
    size = 0
    for item in items:
        if group and (len(group) >= LIMITS.batch or size + size_of(item) > SENT_BYTES):
            yield group
            group, size = [], 0
        group.append(item)
        size += size_of(item)
    if group:
        yield group
