"""The file and its transactions: a step of the contract is one of them, under SQLite's own write lock.

Everything in here runs on the storage's one thread, which alone uses the connection.
"""

from __future__ import annotations

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
from dibs_sqlite.queries import queries, schema
from dibs_sqlite.step import Step

#: Stands in the header of the file: "dibs" as bytes. A database of somebody else's is left alone.
APPLICATION: Final = 0x64696273
LAYOUT: Final = 1
#: How long a step waits for the write lock, s. Steps are short; who waits longer meets a stopped process.
PATIENCE: Final = 30.0
OLDEST: Final = (3, 37, 0)

#: What an error of SQLite means to the caller, by its primary code. In none of these anything was written.
_REFUSALS: Final[dict[int, type[DibsError]]] = {
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
    """One SQLite file. `manual`: the time is what callers say, and the highest that was said."""

    def __init__(self, path: Path, *, fsync: bool, manual: bool) -> None:
        self._path, self._fsync, self._manual = path, fsync, manual
        self._seen = 0
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Open the file, making it if it is new."""
        if sqlite3.sqlite_version_info < OLDEST:
            raise ConfigurationError(f"SQLite is {sqlite3.sqlite_version}; dibs-sqlite needs 3.37 or newer")
        with self._told():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)
            self._prepare(self._connection)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        # Write-ahead log: readers never wait, and a commit is one append. Its sync mode says what survives.
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {'FULL' if self._fsync else 'NORMAL'}")
        connection.execute("BEGIN IMMEDIATE")
        application, layout = (
            connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if not application and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            for statement in schema().split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
            connection.execute(f"PRAGMA user_version = {LAYOUT}")
        elif application != APPLICATION:
            raise StorageDamaged(f"{self._path} is a database, but none of dibs: give another path")
        elif layout > LAYOUT:
            raise StorageTooNew(
                f"{self._path} has layout {layout}; this version of dibs-sqlite knows {LAYOUT}: upgrade it"
            )
        connection.execute("COMMIT")

    def close(self) -> None:
        """Close the file; the last to close it folds the write-ahead log into it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    @contextmanager
    def step(self, now: int | None, *, writes: bool) -> Iterator[Step]:
        """Begin a transaction at the storage's now, and commit it at the end; if it breaks, nothing was."""
        connection = self._connection
        assert connection is not None, "opened before it is used"  # noqa: S101
        with self._told():
            try:
                connection.execute("BEGIN IMMEDIATE" if writes else "BEGIN")
                step = self._begin(connection, now)
                yield step
                step.close()
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _begin(self, connection: sqlite3.Connection, now: int | None) -> Step:
        kept, number = connection.execute(queries()["place"]).fetchone()
        said = (now or 0) if self._manual else time.time_ns() // 1_000_000
        self._seen = max(kept, self._seen, said)
        return Step(connection, self._seen, kept, number)

    def _commit(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if _code(error) == sqlite3.SQLITE_IOERR:
                # The disk may have it or not: neither yes nor no.
                raise OutcomeUnknown(f"{self._path}: {error}") from error
            raise

    def version(self) -> int:
        """Return a number that is another one once somebody else has committed; it reads a few bytes."""
        connection = self._connection
        if connection is None:
            return 0
        with self._told():
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the driver raises into our errors."""
        try:
            yield
        except sqlite3.Error as error:
            kind = _REFUSALS.get(_code(error), StorageUnavailable)
            raise kind(f"{self._path}: {error}") from error
        except OSError as error:
            raise StorageUnavailable(f"cannot open {self._path}: {error.strerror}") from error


def _code(error: sqlite3.Error) -> int:
    """Return the primary code: the low byte of what SQLite said."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF
