"""Enqueue, settle and report in the caller's transaction, on a connection of psycopg, SQLAlchemy or
Django.

The storage receives the driver connection of a SQLAlchemy connection. This module imports no driver;
the storage checks which connections it accepts. Errors are raised as the caller's library raises them
for its own statements: code that retries transactions catches `sqlalchemy.exc.OperationalError` or
`django.db.OperationalError`, and not the error of the driver, which is their `orig` or `__cause__`.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NoReturn, cast

from attrs import define, field, frozen

from dibs.client.connection.caller_thread import CALLER_THREAD, CallerThread, current_handler_thread
from dibs.errors import Refused
from dibs.model.requests import EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult, ReportStatus, SettleResult
from dibs.storage.protocol import Storage, Transactions

Verb = Callable[[str, Sequence[Any]], Any]


def call_blocking(connection: Any, verb: Verb, queue: str, items: Sequence[Any]) -> Any:
    """Call a verb of a blocking connection. Run it on the thread that owns the connection."""
    if hasattr(connection, "wrap_database_errors"):
        connection.validate_no_broken_transaction()
        with connection.wrap_database_errors:
            return verb(queue, items)
    if not hasattr(connection, "exec_driver_sql"):
        return verb(queue, items)
    try:
        return verb(queue, items)
    except _driver_errors(connection) as error:
        if connection.connection.driver_connection.closed:
            connection.invalidate(error)
        _raise_as_sqlalchemy(connection, error)


async def call_async(connection: Any, verb: Verb, queue: str, items: Sequence[Any]) -> Any:
    if not hasattr(connection, "get_raw_connection"):
        return await verb(queue, items)
    try:
        return await verb(queue, items)
    except _driver_errors(connection) as error:
        if (await connection.get_raw_connection()).driver_connection.closed:
            await connection.invalidate(error)
        _raise_as_sqlalchemy(connection, error)


def _driver_errors(connection: Any) -> type[Exception]:
    errors: type[Exception] = connection.dialect.loaded_dbapi.Error
    return errors


def _raise_as_sqlalchemy(connection: Any, error: Exception) -> NoReturn:
    """Raise the error of SQLAlchemy whose `orig` is `error`.

    The connection must have been invalidated if it is closed. SQLAlchemy then rolls back without a second
    error.
    """
    exc = sys.modules["sqlalchemy.exc"]
    raised = exc.DBAPIError.instance(
        None,
        None,
        error,
        connection.dialect.loaded_dbapi.Error,
        connection_invalidated=connection.invalidated,
        dialect=connection.dialect,
    )
    raised.__notes__ = getattr(error, "__notes__", [])
    raise raised from error


@frozen
class TransactionCalls:
    """The verbs `enqueue`, `settle` and `report` of a storage on the caller's connection.

    With a blocking connection the verbs run on the thread of the caller.
    """

    #: The object that `Transactions.in_transaction` of the storage returned.
    _verbs: Any
    #: The connection as the caller passed it. Its library converts the errors of the driver.
    _connection: Any

    async def enqueue(self, queue: str, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue as `Storage.enqueue` does. Other connections see the jobs after the commit."""
        answers: Sequence[EnqueueResult] = await self._call_verb(self._verbs.enqueue, queue, requests)
        return answers

    async def settle(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
        """Settle runs as `Storage.settle` does. A rollback undoes this, and the runs are active again."""
        answers: Sequence[SettleResult] = await self._call_verb(self._verbs.settle, queue, settlements)
        return answers

    async def report(self, queue: str, id: str, fence: int, memo: bytes) -> ReportStatus:
        """Store a memo as `Storage.report` does. Later runs see it after the commit."""
        answer: ReportStatus = await self._call_verb(self._verbs.report, queue, (id, fence, memo))
        return answer

    @property
    def is_open(self) -> bool:
        """True if the connection is in a transaction."""
        return bool(self._verbs.is_open)

    async def _call_verb(self, verb: Any, queue: str, items: Sequence[Any]) -> Any:
        caller = CALLER_THREAD.get()
        if inspect.iscoroutinefunction(verb):
            if caller is not None:
                raise Refused(_ASYNC_MESSAGE, field="connection")
            return await call_async(self._connection, verb, queue, items)
        if caller is None:
            raise Refused(_BLOCKING_MESSAGE, field="connection")
        return await caller.run(partial(call_blocking, self._connection, verb, queue, items))


async def in_transaction(storage: Storage, connection: Any) -> TransactionCalls:
    """Return the verbs in the current transaction of `connection`.

    Raises Refused if the storage or the connection does not support this.
    """
    if not storage.capabilities.transactions:
        raise Refused(
            f"{storage.url} cannot enqueue or settle in your transaction, because it lacks the capability "
            "`transactions`; use a Postgres storage, or leave connection= out",
            field="connection",
        )
    return TransactionCalls(
        cast("Transactions", storage).in_transaction(await _driver_connection(connection)), connection
    )


async def _driver_connection(connection: Any) -> Any:
    """Return the driver connection of a connection of SQLAlchemy or Django; else `connection` itself.

    A connection of SQLAlchemy is in a transaction afterwards.
    """
    if hasattr(connection, "get_raw_connection"):
        if not connection.in_transaction():
            # SQLAlchemy begins a transaction at its own first statement. The storage's statements bypass
            # SQLAlchemy, and without `begin` its `commit` would not send COMMIT.
            await connection.begin()
        return (await connection.get_raw_connection()).driver_connection
    if hasattr(connection, "exec_driver_sql"):
        caller = CALLER_THREAD.get()
        if caller is None:
            raise Refused(_BLOCKING_MESSAGE, field="connection")
        return await caller.run(partial(_begin_transaction, connection))
    if hasattr(connection, "ensure_connection"):
        caller = CALLER_THREAD.get()
        if caller is None:
            raise Refused(_BLOCKING_MESSAGE, field="connection")
        return await caller.run(partial(_open_django_connection, connection))
    return connection


def _begin_transaction(connection: Any) -> Any:
    """Begin a transaction of a blocking SQLAlchemy connection, and return its driver connection."""
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def _open_django_connection(connection: Any) -> Any:
    """Return the driver connection of Django's `connection`, a proxy that differs on each thread.

    Django connects at the first query, and `connection.connection` is None before.
    """
    connection.ensure_connection()
    return connection.connection


_BLOCKING_MESSAGE = (
    "this connection is a blocking one and would block the event loop; pass an AsyncConnection, or call the "
    "method under .sync"
)
_ASYNC_MESSAGE = (
    "an AsyncConnection belongs to an event loop and cannot be used under .sync; pass a blocking connection, "
    "or await the async method"
)


@define
class StepTransactions:
    """The reports of one run that are part of the caller's transactions."""

    #: A Storage; its type is that of the worker's field, so that this class fits the parameter of CurrentJob.
    _storage: Any
    _queue: str
    _id: str
    _fence: int
    #: The connection of the last report.
    _calls: TransactionCalls | None = field(default=None, init=False)

    async def report(self, connection: Any, memo: bytes) -> bool:
        """Store a memo in the transaction of `connection`. Return False if the run has lost its job."""
        calls = await in_transaction(cast("Storage", self._storage), connection)
        self._calls = calls
        return await calls.report(self._queue, self._id, self._fence, memo) != "lost"

    @property
    def is_open(self) -> bool:
        """True if the connection of the last report is in a transaction, which may be that of the report."""
        return self._calls is not None and self._calls.is_open

    async def read_memo(self) -> bytes | None:
        """Return the committed memo of the job; None if another run holds it, or if it has none."""
        [slot] = await cast("Storage", self._storage).get(self._queue, [self._id])
        job = slot.current
        return job.data.memo if job is not None and job.run and job.run.fence == self._fence else None

    def wait(self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
        """Run `work` on `loop` and wait for it. Meanwhile this thread serves its blocking connection."""
        caller = current_handler_thread() or CallerThread()
        token = CALLER_THREAD.set(caller)
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        finally:
            CALLER_THREAD.reset(token)
        caller.wait(future, lambda: None)
        future.result()
