"""The SQLite file, its connection and its transactions.

The storage calls these methods only on its one thread, because a connection of sqlite3 belongs to one thread.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from dibs.errors import (
    ConfigurationError,
    DibsError,
    OutcomeUnknown,
    StorageDamaged,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)
from dibs.storage import clock
from dibs_sqlite.queries import queries, script
from dibs_sqlite.transaction import Transaction

log: Final = logging.getLogger("dibs_sqlite")
#: SQLite's `application_id` in the header of the file: "dibs" in ASCII. A file with another id is refused.
APPLICATION_ID: Final = 0x64696273
#: Version of the tables, kept as SQLite's `user_version`.
LAYOUT: Final = 1
#: The most seconds that a transaction waits for the write lock. Any step takes far less time.
LOCK_TIMEOUT: Final = 30.0
#: Oldest SQLite that this package works with: STRICT tables came with 3.37.
MIN_SQLITE: Final = (3, 37, 0)

#: The errors of dibs for SQLite's primary error codes. After each of these errors the file is unchanged.
_ERRORS: Final[dict[int, type[DibsError]]] = {
    sqlite3.SQLITE_BUSY: StorageUnavailable,
    sqlite3.SQLITE_LOCKED: StorageUnavailable,
    sqlite3.SQLITE_CANTOPEN: StorageUnavailable,
    sqlite3.SQLITE_IOERR: StorageUnavailable,
    sqlite3.SQLITE_FULL: StorageFull,
    sqlite3.SQLITE_READONLY: StorageReadOnly,
    sqlite3.SQLITE_PERM: StorageReadOnly,
    sqlite3.SQLITE_CORRUPT: StorageDamaged,
    sqlite3.SQLITE_NOTADB: StorageDamaged,
}


class Database:
    """One SQLite file, its connection, and the clock of its transactions.

    With `manual`, the clock is the highest `now` that a caller has given; otherwise it is the system's clock.
    `name` is the name of the storage in log messages.
    """

    def __init__(self, path: Path, *, name: str, fsync: bool, manual: bool) -> None:
        self._path, self._name, self._fsync, self._manual = path, name, fsync, manual
        self._highest_now = 0
        #: Ms by which the time is ahead of the system's clock. The file has it, too, after the next write.
        self._lead = 0
        self._connection: sqlite3.Connection | None = None
        #: The inode of the open file. A copy of the file has another one.
        self._inode = 0

    def open(self) -> None:
        """Open the file. Create it if it does not exist."""
        if sqlite3.sqlite_version_info < MIN_SQLITE:
            raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; dibs-sqlite needs 3.37 or newer")
        with self._translated_errors():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=LOCK_TIMEOUT, isolation_level=None)
            self._prepare(self._connection)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # With a write-ahead log, readers never wait and a commit is one append. FULL syncs the log at each
        # commit.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        self._inode = self._path.stat().st_ino
        application_id, layout = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        is_empty = not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not application_id and is_empty:
            _execute_script(connection, "schema")
            connection.execute("UPDATE storage SET inode = ?", (self._inode,))
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif application_id != APPLICATION_ID:
            raise StorageDamaged(
                f"{self._path} is a database of another application: choose another path for the jobs of dibs"
            )
        elif layout > LAYOUT:
            raise StorageTooNew(
                f"{self._path} has layout {layout}, and this version of dibs-sqlite knows {LAYOUT}: "
                "upgrade dibs-sqlite"
            )
        connection.execute(f"PRAGMA user_version = {LAYOUT}")
        connection.execute("COMMIT")

    def close(self) -> None:
        """Close the connection. The last connection to close copies the write-ahead log into the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def transaction(self, now: int | None, *, writes: bool) -> Iterator[Transaction]:
        """Run a `with` block as one transaction. Commit at its end, or roll back if it raises.

        `now` is for a manual clock, in ms. Only a transaction with `writes` may write.
        """
        assert self._connection is not None, "bug in dibs-sqlite: the database is not open"  # noqa: S101
        if self._is_replaced():
            log.warning("another program has removed or replaced %s: it is opened again", self._path)
            self.close()
            self.open()
        connection = self._connection
        with self._translated_errors():
            try:
                # A writer takes the write lock before its first read, so that no row changes before it
                # writes.
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                tx = self._begin_transaction(connection, now)
                yield tx
                tx.flush()
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _is_replaced(self) -> bool:
        """Return whether the path names another file than the one that is open."""
        try:
            return self._path.stat().st_ino != self._inode
        except OSError:
            return True

    def _begin_transaction(self, connection: sqlite3.Connection, now: int | None) -> Transaction:
        stored = connection.execute(queries()["storage"]).fetchone()
        stored_now, _, stored_lead, *_ = stored
        highest = max(stored_now, self._highest_now)
        lead = stored_lead or self._lead
        if self._manual:
            self._highest_now, self._lead = max(highest, now or 0), lead
        else:
            self._highest_now, self._lead = clock.storage_time(time.time_ns() // 1_000_000, highest, lead)
            clock.report_lead(self._name, self._lead)
        return Transaction(connection, self._highest_now, self._lead, self._inode, stored)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if _primary_code(error) == sqlite3.SQLITE_IOERR:
                # The commit may or may not be on the disk, so the step may have happened.
                raise OutcomeUnknown(
                    f"{self._path}: the commit failed ({error}); read the job before you repeat the call"
                ) from error
            raise

    def version(self) -> int:
        """Return a number that changes when another connection commits.

        Reading it costs SQLite a few bytes.
        """
        connection = self._connection
        if connection is None:
            return 0
        with self._translated_errors():
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file. PASSIVE waits for no other connection."""
        connection = self._connection
        assert connection is not None, "bug in dibs-sqlite: the database is not open"  # noqa: S101
        with self._translated_errors():
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Convert the errors of SQLite and of the system in a `with` block to errors of dibs."""
        try:
            yield
        except sqlite3.Error as error:
            kind = _ERRORS.get(_primary_code(error), StorageUnavailable)
            raise kind(f"{self._path}: {error}") from error
        except OSError as error:
            raise StorageUnavailable(f"cannot open {self._path}: {error.strerror}") from error


def _primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary error code: the low byte of the extended code."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _execute_script(connection: sqlite3.Connection, name: str) -> None:
    """Run each statement of a file in sql/. `executescript` would first commit the open transaction."""
    for statement in script(name).split(";\n"):
        connection.execute(statement)
