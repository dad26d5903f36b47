"""Enqueue and settle as part of a transaction of the caller's own: the outbox for free.

The same statements on the caller's connection: a commit makes both visible, a rollback neither. Errors of the
statement come through the gate as ever, but the transaction is the caller's, and so is its end.

A queue's own row is made before, apart from that transaction: new in one that stays open, it would hold up
everybody else who enqueues there for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

# Not the connection's own cursors: those of Django's bind in the client, and know no binary results.
from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.rows import tuple_row

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, EnqueueRequest, Fail, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.postgres.codec import rows

if TYPE_CHECKING:
    from dibs.storage.postgres.session import Door


def written_to(queue: str, settlements: Sequence[Settlement]) -> list[str]:
    """Return the queues that settlements enqueue into."""
    ends = [one.action for one in settlements if isinstance(one.action, Complete | Fail)]
    names = {item.queue for end in ends for item in end.then}
    if any(isinstance(end, Fail) and end.handled for end in ends) and not queue.endswith(FAIL_SUFFIX):
        names.add(queue + FAIL_SUFFIX)
    return sorted(names)


class JoinedAsync:
    """On an AsyncConnection, in the caller's event loop."""

    def __init__(self, storage: Door, connection: AsyncConnection[Any]) -> None:
        self._storage = storage
        self._connection = connection

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        name, params = self._storage.asked(queue, requests, now)
        if not requests:
            return []
        await self._storage.know([queue])
        return rows.enqueued_of(await self._fetch(name, params), len(requests))

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        params, reasons = self._storage.settling(queue, settlements, now)
        if not settlements:
            return []
        await self._storage.know(written_to(queue, settlements))
        ((statuses, revisions),) = await self._fetch("settle", params)
        return rows.settled_of(statuses, revisions, reasons)

    async def _fetch(self, name: str, params: dict[str, Any]) -> list[Any]:
        with self._storage.crossing(self._connection):
            async with AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
                await cursor.execute(self._storage.query(name), params, binary=True)
                return await cursor.fetchall()


class Joined:
    """On a Connection without asyncio, on the caller's own thread."""

    def __init__(self, storage: Door, connection: Connection[Any]) -> None:
        self._storage = storage
        self._connection = connection

    def enqueue(self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None) -> list[EnqueueResult]:
        name, params = self._storage.asked(queue, requests, now)
        if not requests:
            return []
        self._storage.know_blocking([queue])
        return rows.enqueued_of(self._fetch(name, params), len(requests))

    def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        params, reasons = self._storage.settling(queue, settlements, now)
        if not settlements:
            return []
        self._storage.know_blocking(written_to(queue, settlements))
        ((statuses, revisions),) = self._fetch("settle", params)
        return rows.settled_of(statuses, revisions, reasons)

    def _fetch(self, name: str, params: dict[str, Any]) -> list[Any]:
        with (
            self._storage.crossing(self._connection),
            Cursor(self._connection, row_factory=tuple_row) as cursor,
        ):
            cursor.execute(self._storage.query(name), params, binary=True)
            return cursor.fetchall()
