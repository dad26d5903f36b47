"""Conversion of psycopg's errors to errors of dibs, whose class shows whether the statement may have run.

OutcomeUnknown means that it may have run; after any other error, no row has changed. No message has a
password.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg
from attrs import frozen
from psycopg import errors as pg

from dibs.errors import (
    DibsError,
    OutcomeUnknown,
    Refused,
    StorageBusy,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)

T = TypeVar("T")

#: Errors after which the server rolled a statement back because of a concurrent one. A retry may succeed.
ROLLED_BACK: Final = (pg.SerializationFailure, pg.DeadlockDetected)
#: The same with the error of a limited wait for a lock, if the server sets the limit.
CONFLICTS: Final = (*ROLLED_BACK, pg.LockNotAvailable)
#: The most attempts at a statement that raises one of CONFLICTS, including the first attempt.
MAX_TRIES: Final = 6

_FULL: Final = (pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded)
READ_ONLY: Final = (pg.ReadOnlySqlTransaction,)
#: Errors of a schema that has the functions or tables of another version of dibs.
OTHER_VERSION: Final = (
    pg.UndefinedFunction,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedObject,
    pg.InvalidSchemaName,
    pg.AmbiguousFunction,
)
#: Errors with which the server closes a connection.
GONE: Final = (
    pg.AdminShutdown,
    pg.CrashShutdown,
    pg.DatabaseDropped,
    pg.IdleSessionTimeout,
    pg.ConnectionException,
)
_BUSY: Final = (pg.TooManyConnections,)
_WRONG_PASSWORD: Final = (pg.InvalidPassword, pg.InvalidAuthorizationSpecification)

#: A part of the error with which PgBouncer refuses a transaction. It has no SQLSTATE of its own.
STATEMENT_MODE: Final = "statement pooling mode"
#: The messages of a server, a database and a role whose connections are all in use.
_NO_CONNECTION: Final = re.compile("too many (connections|clients)|connection slots are reserved")
#: The message of a server that lacks the database. Errors while connecting have no SQLSTATE to check.
_NO_ROLE: Final = re.compile(r'role "[^"]*" does not exist')
_NO_DATABASE: Final = re.compile(r'database "[^"]*" does not exist')


class ReadLost(StorageUnavailable):
    """Raised if the connection is lost during a statement that only reads. It is safe to run it again."""


@frozen
class DriverErrors:
    """Converts the errors of psycopg to errors of dibs, with the name of one server in each message."""

    #: The URL without its secrets, for messages.
    url: str
    #: Hosts and ports, for messages about connecting.
    hosts: str

    def to_connect_error(self, error: BaseException) -> StorageError:
        """Convert the error of a connection that could not be opened."""
        why = first_line(error)
        if isinstance(error, _WRONG_PASSWORD) or "authentication failed" in why or _NO_ROLE.search(why):
            return StorageUnavailable(f"{self.url}: the server refuses the user or the password: {why}")
        if isinstance(error, _BUSY) or _NO_CONNECTION.search(why):
            return StorageUnavailable(
                f"Postgres at {self.hosts} accepts no more connections: {why}. Close some, lower "
                "max_connections of the apps, or raise the limit of the role or the server",
                passes=True,
            )
        if isinstance(error, pg.InvalidCatalogName) or _NO_DATABASE.search(why):
            return StorageUnavailable(
                f"Postgres at {self.hosts} answers: {why}. Create the database, or correct the URL"
            )
        if "unsupported startup parameter" in why:
            return StorageUnavailable(
                f"a pooler at {self.hosts} refuses a parameter of the URL: {why}. Leave it out, or add it to "
                "ignore_startup_parameters of PgBouncer"
            )
        return StorageUnavailable(
            f"cannot connect to Postgres at {self.hosts}: {why}. Is it running, and does it listen there?",
            passes=True,
        )

    def to_storage_error(self, error: psycopg.Error, *, writes: bool, alive: bool) -> DibsError:
        """Convert the error of a failed statement.

        `writes` is True for a statement that may write, `alive` if the connection is still usable.
        """
        why = first_line(error)
        if STATEMENT_MODE in why:
            return StorageUnavailable(
                f"{self.url}: PgBouncer in statement mode allows no transaction, and one creates or migrates "
                "the tables. Open the storage once with the URL of the server itself; then this URL works"
            )
        if isinstance(error, GONE) or not alive:
            return self._to_lost_error(why, writes=writes)
        if isinstance(error, CONFLICTS):
            return StorageError(
                f"{self.url}: the statement conflicted with concurrent statements in {MAX_TRIES} attempts, "
                f"nothing was changed; retry later: {why}"
            )
        if isinstance(error, pg.QueryCanceled):
            return StorageBusy(
                f"{self.url}: the server ended the statement, nothing was changed; repeat it later: {why}",
                waits_for="the end of the statement",
            )
        if isinstance(error, READ_ONLY):
            return StorageReadOnly(f"{self.url} is read-only, perhaps a standby; nothing was changed: {why}")
        if isinstance(error, _FULL):
            return StorageFull(f"{self.url} is out of space, nothing was changed; free some space: {why}")
        if isinstance(error, pg.InsufficientPrivilege):
            return StorageError(
                f"{self.url}: the role lacks a privilege, nothing was changed; grant it: {why}"
            )
        if isinstance(error, OTHER_VERSION):
            return self._to_layout_error(error, why)
        if isinstance(error, psycopg.DataError):
            return Refused(f"{self.url} cannot store this value, nothing was changed: {why}")
        return StorageError(f"{self.url}: nothing was changed: {why}")

    def _to_layout_error(self, error: psycopg.Error, why: str) -> StorageError:
        if isinstance(error, pg.InvalidSchemaName):
            return self.to_removed_error(why)
        return StorageTooNew(
            f"{self.url} does not have the layout of this version of dibs: {why}. It was migrated while it "
            "was open: restart every process with the same version"
        )

    def to_removed_error(self, why: str) -> StorageUnavailable:
        """Convert the error of a statement that found no schema, or an empty one."""
        return StorageUnavailable(
            f"{self.url}: the schema was removed while it was open, with all its jobs; nothing was changed. "
            f"The next call creates it again, without jobs: {why}",
            passes=True,
        )

    def _to_lost_error(self, why: str, *, writes: bool) -> DibsError:
        if writes:
            return OutcomeUnknown(f"{self.url}: the connection was lost before the reply arrived: {why}")
        return ReadLost(f"{self.url}: the connection was lost: {why}", passes=True)


def first_line(error: BaseException) -> str:
    """Return the server's message without its detail, which may quote values, and without the query."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = primary or str(error).strip() or type(error).__name__
    return text.splitlines()[0]


async def retry_conflicts(
    work: Callable[[], Awaitable[T]], conflicts: tuple[type[psycopg.Error], ...] = CONFLICTS
) -> T:
    """Await `work()`, and repeat it after an error of `conflicts`, up to MAX_TRIES attempts in all."""
    for attempt in range(MAX_TRIES - 1):
        try:
            return await work()
        except conflicts:
            # Pause for a random time, so that two statements that collided do not collide again.
            await asyncio.sleep(random.random() * 0.005 * 2**attempt)  # noqa: S311 - no secret
    return await work()
