"""Errors on a connection of SQLAlchemy or Django, raised as that library raises them for its own statements.

Code that retries transactions catches `sqlalchemy.exc.OperationalError` or `django.db.OperationalError`, and
not the error of the driver, which is their `orig` or `__cause__`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

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
    """Await a verb of an async connection."""
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
