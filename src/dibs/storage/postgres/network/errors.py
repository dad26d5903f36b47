"""Where the driver's errors become ours: each says whether anything happened, and never a password."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import psycopg
from psycopg import errors as pg

from dibs.errors import (
    DibsError,
    OutcomeUnknown,
    Refused,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageTooNew,
    StorageUnavailable,
)

T = TypeVar("T")

#: Rolled back by the server because of others: nothing happened, and the same call may succeed at once.
CONFLICTS: Final = (pg.SerializationFailure, pg.DeadlockDetected, pg.LockNotAvailable)
#: How often such a call is made in all.
TRIES: Final = 6

_FULL: Final = (pg.DiskFull, pg.OutOfMemory, pg.ConfigurationLimitExceeded)
_READ_ONLY: Final = (pg.ReadOnlySqlTransaction,)
#: What a function or table of another version looks like from here.
_OTHER_VERSION: Final = (
    pg.UndefinedFunction,
    pg.UndefinedTable,
    pg.UndefinedColumn,
    pg.UndefinedObject,
    pg.InvalidSchemaName,
    pg.AmbiguousFunction,
)
_GONE: Final = (pg.AdminShutdown, pg.CrashShutdown, pg.DatabaseDropped, pg.IdleSessionTimeout)
_BUSY: Final = (pg.TooManyConnections, pg.CannotConnectNow)
_WRONG_PASSWORD: Final = (pg.InvalidPassword, pg.InvalidAuthorizationSpecification)


class ReadLost(StorageUnavailable):
    """A connection was lost under a statement that only reads: it may be run again."""


class Gate:
    """Knows the place, as it may be shown, and turns what the driver raises there into our errors."""

    def __init__(self, place: str, hosts: str) -> None:
        self._place = place
        self._hosts = hosts

    def unreachable(self, error: BaseException) -> StorageError:
        """Return our error for a connection that could not be opened."""
        why = first_line(error)
        if isinstance(error, _WRONG_PASSWORD) or "authentication failed" in why:
            return StorageUnavailable(f"{self._place}: the server refuses the user or the password: {why}")
        if isinstance(error, _BUSY):
            return StorageUnavailable(f"{self._hosts} takes no connection now: {why}")
        return StorageUnavailable(
            f"cannot reach Postgres at {self._hosts}: {why}. Is it running, and does it listen there?"
        )

    def crossed(self, error: psycopg.Error, *, writes: bool, alive: bool) -> DibsError:
        """Return our error for what went wrong in a statement; `alive` says the connection still is."""
        why = first_line(error)
        if isinstance(error, _GONE) or not alive or isinstance(error, pg.ConnectionException):
            return self._lost(why, writes=writes)
        if isinstance(error, CONFLICTS):
            return StorageError(
                f"{self._place}: others were in the way {TRIES} times, nothing happened: {why}"
            )
        if isinstance(error, _READ_ONLY):
            return StorageReadOnly(f"{self._place} is read-only (a standby?), nothing happened: {why}")
        if isinstance(error, _FULL):
            return StorageFull(f"{self._place} has no room left, nothing happened: {why}")
        if isinstance(error, pg.InsufficientPrivilege):
            return StorageError(f"{self._place}: a right is missing, nothing happened: {why}")
        if isinstance(error, _OTHER_VERSION):
            return StorageTooNew(
                f"{self._place} is not laid out as this version of dibs knows it: {why}. It was migrated or "
                "removed under way: restart with the same version everywhere"
            )
        if isinstance(error, psycopg.DataError):
            return Refused(f"{self._place} cannot keep that, nothing happened: {why}")
        return StorageError(f"{self._place}: nothing happened: {why}")

    def _lost(self, why: str, *, writes: bool) -> DibsError:
        if writes:
            return OutcomeUnknown(f"{self._place}: the connection was lost before the answer came: {why}")
        return ReadLost(f"{self._place}: the connection was lost: {why}")


def first_line(error: BaseException) -> str:
    """Return what the server said, without the detail, which may quote values, and without the query."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    text = primary or str(error).strip() or type(error).__name__
    return text.splitlines()[0]


async def again(work: Callable[[], Awaitable[T]]) -> T:
    """Do work that the server may roll back because of others, a bounded number of times."""
    for attempt in range(TRIES - 1):
        try:
            return await work()
        except CONFLICTS:
            # Full jitter, so that two that met do not meet again.
            await asyncio.sleep(random.random() * 0.005 * 2**attempt)  # noqa: S311 - no secret
    return await work()
