"""What Redis and its driver say, in our words: one gate for foreign errors."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions as theirs

from dibs.errors import StorageDamaged, StorageError, StorageFull, StorageReadOnly, StorageUnavailable

#: Nothing was run, and soon it may: a failover, a restart, a resharding.
PASSING: Final = (
    theirs.BusyLoadingError,
    theirs.MasterDownError,
    theirs.ClusterDownError,
    theirs.TryAgainError,
)
#: The name or password is wrong, or missing.
UNWELCOME: Final = (theirs.AuthenticationError, theirs.AuthorizationError)
BUSY: Final = ("MISCONF", "BUSY", "LOADING", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")
_WRAPPED: Final = re.compile(r"^.*@user_script: ?\d+: -", re.DOTALL)
_OUR_TYPE: Final = re.compile(r"DIBSTYPE (.*) is a (\w+), not a (\w+)")


def refusal(error: theirs.RedisError, place: str) -> StorageError:
    """Return what to raise for an answer that says no: nothing was written."""
    # Within a script, Redis 6.2 wraps what it said: "Error running script (…): @user_script: 234: -OOM …".
    said = _WRAPPED.sub("", str(error))
    if isinstance(error, UNWELCOME) or said.startswith("NOAUTH"):
        return StorageUnavailable(
            f"{place} refuses the name or password in the URL; correct them, or set none if it wants none"
        )
    if isinstance(error, theirs.ReadOnlyError) or said.startswith("READONLY"):
        return StorageReadOnly(f"{place} is a read-only replica; give the address of its primary")
    if isinstance(error, theirs.OutOfMemoryError) or said.startswith("OOM"):
        return StorageFull(f"{place} has reached its maxmemory; raise it, or let jobs end, and repeat")
    if isinstance(error, theirs.NoPermissionError) or said.startswith("NOPERM"):
        return StorageUnavailable(f"{place} does not permit what dibs needs: {said}")
    if isinstance(error, PASSING) or said.startswith(BUSY):
        return StorageUnavailable(f"{place} cannot serve at the moment: {said}")
    if "cluster support disabled" in said:
        return StorageUnavailable(f"{place} is a single server: write redis:// in place of redis+cluster://")
    if found := _OUR_TYPE.search(said):
        return _damaged(place, f"{found[1]} is a {found[2]}, not a {found[3]}")
    if "WRONGTYPE" in said:
        return _damaged(place, "a key of another type stands where dibs keeps its own")
    return StorageError(f"{place} refused: {said}")


def _damaged(place: str, what: str) -> StorageDamaged:
    return StorageDamaged(
        f"{place}: {what}; rename it, or open dibs with another prefix. Nothing was changed"
    )
