"""Enqueues of one job on Postgres that are sent without a task; see dibs.storage.abilities.

They are single requests that set only id and payload, on a connection that has their prepared statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import psycopg
from psycopg import errors as pg

from dibs.errors import DibsError, OutcomeUnknown, StorageReadOnly
from dibs.model.check_jobs import CheckedBatch
from dibs.model.results import EnqueueResult
from dibs.storage.abilities import OnEnd
from dibs.storage.postgres.codec.rows import decode_enqueued_one
from dibs.storage.postgres.network.errors import CONFLICTS
from dibs.storage.postgres.session import PostgresSession

#: The longest wait for a lock in ms. The caller then enqueues in the usual way, which can wait longer.
LOCK_MS: Final = b"100"

Columns = Sequence[bytes | None]
#: Errors after which the job was surely not enqueued. The usual way repeats the statement, or waits for the
#: lock, or creates a removed schema again. Without the prepared statement, the session has run DISCARD, or is
#: another one.
_DID_NOT_RUN: Final = (*CONFLICTS, pg.InvalidSqlStatementName, pg.InvalidSchemaName)


class PostgresDirectEnqueue(PostgresSession):
    """The enqueues that take one write and one read of an open connection."""

    def start_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd) -> bool:
        values = self._direct_values(queue, requests)
        return values is not None and self._server.start_enqueue(values, partial(self._end_enqueue, on_end))

    def enqueue_blocking(
        self, queue: str, requests: CheckedBatch, seconds: float | None = None
    ) -> Sequence[EnqueueResult] | None:
        if (values := self._direct_values(queue, requests)) is None:
            return None
        threads = self._server.for_threads
        try:
            columns = None if threads is None else threads.call(values, seconds)
        except TimeoutError:
            raise OutcomeUnknown(
                f"{self.url}: an enqueue to queue {queue!r} was sent and had no answer within "
                f"{seconds:g} s, so it may or may not take effect; read the state of the "
                "job, or repeat it with the same id"
            ) from None
        except psycopg.Error as error:
            if (found := self._direct_error(error)) is None:
                return None
            if threads is not None and isinstance(found, StorageReadOnly):
                threads.close_idle()
            raise found from None
        return None if columns is None else [decode_enqueued_one(columns)]

    def prepare_blocking(self) -> None:
        if self._server.for_threads is not None and not self._manual:
            self._server.for_threads.open_one()

    def _direct_values(self, queue: str, requests: CheckedBatch) -> Columns | None:
        """Return the values of the prepared statement; None for requests that it cannot enqueue.

        A manual clock needs one more value, so its calls take the usual way.
        """
        if self._manual or not self._server.is_open:
            return None
        _, params = self.enqueue_query(queue, requests, None)
        if "id" not in params:
            return None
        lock_ms = LOCK_MS if self._lock_ms is None else self._lock_ms.encode()
        return queue.encode(), lock_ms, params["id"].encode(), params["payload"]

    def _end_enqueue(self, on_end: OnEnd, answer: Columns | Exception) -> None:
        if isinstance(answer, Exception):
            on_end(self._direct_error(answer))
        else:
            on_end([decode_enqueued_one(answer)])

    def _direct_error(self, error: Exception) -> DibsError | None:
        """Return the error of a caller; None if the statement surely did not run and may be repeated."""
        return None if isinstance(error, _DID_NOT_RUN) else self._server.to_write_error(error)
