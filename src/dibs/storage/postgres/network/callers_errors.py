"""The errors of a statement on the caller's connection.

Errors of the caller's own transaction are raised as psycopg raises them, so that code which retries the
caller's transactions works. All others become errors of dibs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import BaseConnection
from psycopg import errors as pg
from psycopg.pq import TransactionStatus

from dibs.errors import ConfigurationError, Refused, StorageReadOnly, StorageUnavailable
from dibs.model.error_text import message_of
from dibs.storage.postgres.network.errors import (
    GONE,
    OTHER_VERSION,
    READ_ONLY,
    STATEMENT_MODE,
    DriverErrors,
    first_line,
)

#: Errors of the caller's transaction and of the limits that the caller has set for it.
CALLERS: Final = (
    pg.TransactionRollback,
    pg.SerializationFailure,
    pg.DeadlockDetected,
    pg.InFailedSqlTransaction,
    pg.LockNotAvailable,
    pg.QueryCanceled,
)


class TransactionLost(StorageUnavailable, psycopg.OperationalError):
    """Raised if the caller's connection is lost in a transaction, which the server then rolls back.

    It is also an error of the driver, because code that retries transactions catches those.
    """


def check_connection(connection: BaseConnection[Any]) -> None:
    """Raise Refused for a two-phase transaction."""
    if getattr(connection, "_tpc", None):
        raise Refused(
            "connection is in a two-phase transaction (tpc_begin), and Postgres cannot prepare one that has "
            "sent a notification; use a plain transaction",
            field="connection",
        )


@contextmanager
def raising_callers_errors(connection: BaseConnection[Any], errors: DriverErrors) -> Iterator[None]:
    """Convert psycopg's errors in a `with` block, except those of the caller's transaction."""
    was_closed = connection.closed
    autocommit = connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE
    try:
        yield
    except psycopg.Error as error:
        if was_closed:
            raise TransactionLost(
                f"connection is closed ({first_line(error)}), so nothing was sent; pass an open connection, "
                "and repeat the whole transaction there"
            ) from error
        if STATEMENT_MODE in message_of(error):
            raise Refused(
                "connection leads to PgBouncer in statement mode, which allows no transaction; pass a "
                "connection in autocommit mode, or use a pool in transaction mode",
                field="connection",
            ) from error
        if isinstance(error, GONE) or connection.closed:
            raise _to_lost_error(error, errors, autocommit=autocommit) from error
        if isinstance(error, CALLERS):
            error.add_note(
                "raised by a call of dibs with connection=, in your transaction: roll back, and repeat the "
                "whole transaction"
            )
            raise
        raise _to_dibs_error(error, connection, errors) from error
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"the connection has the encoding {connection.info.encoding}, which lacks a character of "
            "this call; connect with client_encoding=UTF8"
        ) from None


def _to_lost_error(error: psycopg.Error, errors: DriverErrors, *, autocommit: bool) -> Exception:
    if autocommit:
        return errors.to_storage_error(error, writes=True, alive=False)
    return TransactionLost(
        f"{errors.url}: the connection was lost, and so your transaction is lost: nothing of it is stored; "
        f"repeat the whole transaction on a new connection: {first_line(error)}"
    )


def _to_dibs_error(error: psycopg.Error, connection: BaseConnection[Any], errors: DriverErrors) -> Exception:
    if isinstance(error, READ_ONLY):
        return StorageReadOnly(
            f"{errors.url}: your transaction is read-only, or its server is a standby; nothing was changed: "
            f"{first_line(error)}"
        )
    if isinstance(error, OTHER_VERSION):
        return refuse_other_database(connection, errors, why=first_line(error))
    return errors.to_storage_error(error, writes=True, alive=True)


def refuse_other_database(connection: BaseConnection[Any], errors: DriverErrors, *, why: str = "") -> Refused:
    """Return the Refused that names the database of `connection` and the URL of the app.

    The caller found that the schema of the app is not in that database.
    """
    info = connection.info
    found = f" ({why})" if why else ""
    return Refused(
        f"connection leads to the database {info.dbname!r} at {info.host}:{info.port}, whose schema is not "
        f"the one that the app has opened{found}: {errors.url}; pass a connection to that database, or open "
        "the app again if its schema was made anew. Nothing was changed",
        field="connection",
    )
