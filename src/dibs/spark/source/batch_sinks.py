"""The two ways to enqueue a batch of rows once: with a request key for each row, or with a key set."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from attrs import define, field

from dibs.errors import OutcomeUnknown
from dibs.model.check_jobs import CheckedBatch
from dibs.model.limits import LIMITS
from dibs.model.request_columns import RequestColumns
from dibs.model.results import EnqueueResult, EnqueueStatus
from dibs.spark.connection import StorageConnection
from dibs.storage.key_sets import KeySets

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

        Raise BatchRefused, StorageError or OutcomeUnknown.
        """
        ...


def open_sink(connection: StorageConnection, queue: str, key_prefix: str) -> BatchSink:
    """Return the sink of a partition. Its request keys begin with `key_prefix` and "/"."""
    storage = connection.storage
    if isinstance(storage, KeySets):
        return KeySetSink(connection, storage, queue, key_prefix)
    return RequestSink(connection, queue, key_prefix)


@define
class RequestSink:
    """Enqueues an object with a request key for each row. Each storage can do this."""

    _connection: StorageConnection
    _queue: str
    _key_prefix: str

    def enqueue(self, columns: RequestColumns) -> Enqueued:
        batch = CheckedBatch.of(columns.requests(self._key_prefix), LIMITS, plain=False)
        results = self._send(batch)
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
        """Return the rows that are not in the key set."""
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
