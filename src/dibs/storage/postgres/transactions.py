"""Enqueue, settle and report inside a transaction of the caller, on the caller's connection.

The caller's commit makes the jobs visible, and a rollback removes them. The caller also decides how the
transaction ends after an error.

The row of a new queue is inserted before the enqueue, in a separate transaction. In the caller's
transaction, the row would block every other first enqueue to that queue until the caller commits. The
setting `fail_handler` is read there, too, because a transaction at REPEATABLE READ may see an older setting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import frozen

# Use the AsyncCursor and Cursor classes of psycopg itself. The cursors of Django's connections bind
# parameters on the client side and do not support binary results.
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from dibs.model.requests import Complete, EnqueueRequest, Fail, Settlement
from dibs.model.results import EnqueueResult, ReportStatus, SettleResult
from dibs.storage.postgres.codec import rows
from dibs.storage.postgres.codec.parameters import add_handled
from dibs.storage.postgres.session import PostgresSession


def queues_written(settlements: Sequence[Settlement]) -> list[str]:
    """Return the queues into which settlements enqueue follow-ups."""
    ends = [one.action for one in settlements if isinstance(one.action, Complete | Fail)]
    return sorted({item.queue for end in ends for item in end.then})


def any_failure(settlements: Sequence[Settlement]) -> bool:
    return any(isinstance(one.action, Fail) for one in settlements)


def is_in_transaction(connection: AsyncConnection[Any] | Connection[Any]) -> bool:
    return connection.info.transaction_status not in (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)


@frozen
class AsyncTransaction:
    """The verbs enqueue, settle and report inside the transaction of an AsyncConnection."""

    _session: PostgresSession
    _connection: AsyncConnection[Any]

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        name, params = self._session.enqueue_query(queue, requests, now)
        if not requests:
            return []
        await self._session.register_queues([queue])
        found = await self._fetch(name, params)
        return self._session.decode(queue, rows.decode_enqueued, found, requests)

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        params, reasons = self._session.settle_params(queue, settlements, now)
        if not settlements:
            return []
        await self._session.register_queues(queues_written(settlements))
        if any_failure(settlements):
            add_handled(params, await self._session.register_fail_queue(queue))
        ((statuses, revisions),) = await self._fetch("settle", params)
        return rows.decode_settled(statuses, revisions, reasons)

    async def report(
        self, queue: str, items: tuple[str, int, bytes], *, now: int | None = None
    ) -> ReportStatus:
        """Store a memo. `items` are the id and fence of the run, and the memo."""
        id, fence, memo = items
        found = await self._fetch("report", self._session.report_params(queue, id, fence, None, memo, now))
        return "reported" if found[0][0] else "lost"

    @property
    def is_open(self) -> bool:
        """True if the connection is in a transaction."""
        return is_in_transaction(self._connection)

    async def _fetch(self, name: str, params: dict[str, Any]) -> list[Any]:
        query, all_params = self._session.joined_query(name, params)
        with self._session.raising_callers_errors(self._connection):
            async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(query, all_params, prepare=self._session.prepare, binary=True)
                if found := await cursor.fetchall():
                    return found
        raise self._session.refuse_other_database(self._connection)


@frozen
class BlockingTransaction:
    """The verbs enqueue, settle and report inside the transaction of a Connection, on the caller's thread."""

    _session: PostgresSession
    _connection: Connection[Any]

    def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        name, params = self._session.enqueue_query(queue, requests, now)
        if not requests:
            return []
        self._session.register_queues_blocking([queue])
        return self._session.decode(queue, rows.decode_enqueued, self._fetch(name, params), requests)

    def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        params, reasons = self._session.settle_params(queue, settlements, now)
        if not settlements:
            return []
        self._session.register_queues_blocking(queues_written(settlements))
        if any_failure(settlements):
            add_handled(params, self._session.register_fail_queue_blocking(queue))
        ((statuses, revisions),) = self._fetch("settle", params)
        return rows.decode_settled(statuses, revisions, reasons)

    def report(self, queue: str, items: tuple[str, int, bytes], *, now: int | None = None) -> ReportStatus:
        """Store a memo. `items` are the id and fence of the run, and the memo."""
        id, fence, memo = items
        found = self._fetch("report", self._session.report_params(queue, id, fence, None, memo, now))
        return "reported" if found[0][0] else "lost"

    @property
    def is_open(self) -> bool:
        """True if the connection is in a transaction."""
        return is_in_transaction(self._connection)

    def _fetch(self, name: str, params: dict[str, Any]) -> list[Any]:
        query, all_params = self._session.joined_query(name, params)
        with (
            self._session.raising_callers_errors(self._connection),
            Cursor(self._connection, row_factory=tuple_row) as cursor,
        ):
            cursor.execute(query, all_params, prepare=self._session.prepare, binary=True)
            if found := cursor.fetchall():
                return found
        raise self._session.refuse_other_database(self._connection)
