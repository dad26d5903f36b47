"""Enqueue and settle in a transaction of the caller's: on their connection, not one of the storage's.

A connection of psycopg, or one of SQLAlchemy, whose driver connection is meant. No driver is known here:
what a connection can do is for the storage to say.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from dibs.client.connection.thread_callbacks import CALLER_THREAD
from dibs.errors import Refused
from dibs.model.requests import EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.protocol import Storage, Transactions


class TransactionCalls:
    """Two verbs of a storage, on the caller's connection; one that blocks is used on the caller's thread."""

    def __init__(self, theirs: Any) -> None:
        self._theirs = theirs

    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue as the storage does; whoever looks from outside sees nothing before the commit."""
        answers: Sequence[EnqueueResult] = await self._do(self._theirs.enqueue, queue, requests)
        return answers

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
        """Settle as the storage does; after a rollback nothing has been."""
        answers: Sequence[SettleResult] = await self._do(self._theirs.settle, queue, settlements)
        return answers

    async def _do(self, verb: Any, queue: str, items: Sequence[Any]) -> Any:
        caller = CALLER_THREAD.get()
        if inspect.iscoroutinefunction(verb):
            if caller is not None:
                raise Refused(_ASYNC, field="connection")
            return await verb(queue, items)
        if caller is None:
            raise Refused(_BLOCKS, field="connection")
        return await caller.do(partial(verb, queue, items))


async def in_transaction(storage: Storage, connection: Any) -> TransactionCalls:
    """Return the way into whatever transaction the connection is in. Raises Refused where there is none."""
    if not storage.capabilities.transactions:
        raise Refused(
            f"{storage.url} has not the capability `transactions`: it cannot enqueue or settle in "
            "your transaction. A Postgres storage can; elsewhere leave connection= out",
            field="connection",
        )
    return TransactionCalls(
        cast("Transactions", storage).in_transaction(await _driver_connection(connection))
    )


async def _driver_connection(connection: Any) -> Any:
    """Return what a connection of SQLAlchemy stands on, a transaction begun; any other as it is."""
    if hasattr(connection, "get_raw_connection"):
        if not connection.in_transaction():
            # As its own first statement would: else its commit would know of nothing to commit.
            await connection.begin()
        return (await connection.get_raw_connection()).driver_connection
    if hasattr(connection, "exec_driver_sql"):
        caller = CALLER_THREAD.get()
        if caller is None:
            raise Refused(_BLOCKS, field="connection")
        return await caller.do(partial(_begun, connection))
    return connection


def _begun(connection: Any) -> Any:
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


_BLOCKS = "this connection would block the event loop: pass an AsyncConnection, or use .sync without async"
_ASYNC = "an AsyncConnection belongs to an event loop: pass a blocking one to .sync, or await the async form"
