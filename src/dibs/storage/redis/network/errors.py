"""Conversion of redis-py's exceptions and of Redis error replies to the errors of dibs."""

from __future__ import annotations

import re
from typing import Final

from redis import exceptions as redis_errors

from dibs.errors import StorageDamaged, StorageError, StorageFull, StorageReadOnly, StorageUnavailable
from dibs.storage.redis.keys import queue_of_prefix

#: Errors of a failover, a restart or a resharding: the command did not run, and a retry may succeed soon.
TRANSIENT: Final = (
    redis_errors.BusyLoadingError,
    redis_errors.MasterDownError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
)
#: Errors for a wrong or missing user name or password.
AUTHENTICATION: Final = (redis_errors.AuthenticationError, redis_errors.AuthorizationError)
UNAVAILABLE_CODES: Final = ("MISCONF", "BUSY", "LOADING", "NOREPLICAS", "CLUSTERDOWN", "MASTERDOWN")
_SCRIPT_PREFIX: Final = re.compile(r"^.*@user_script: ?\d+: -", re.DOTALL)
#: The message that expect_type in storage/redis/lua/include/queue.lua raises for a key of another Redis type.
_WRONG_TYPE: Final = re.compile(r"DIBSTYPE (.*) is a (\w+), not a (\w+)")
#: The message that damaged in storage/redis/lua/include/job_record.lua raises for a record.
_DAMAGED: Final = re.compile(r"DIBSDAMAGED (\w+) ([0-9a-f]*) ([0-9a-f]*)")
#: Part of a queue -> its name for people, and what to do if it is damaged.
_FORGET: Final = "remove the job with forget, or restore a backup"
_RESTORE: Final = "restore a backup, or remove the record from its key"
_PARTS: Final = {
    "job": ("the record of job", _FORGET),
    "outcome": ("the outcome of job", _FORGET),
    "successor": ("the blocked job of id", _FORGET),
    "dropped": ("the list of cancelled enqueues of id", _FORGET),
    "lease": ("the record of lease", _RESTORE),
    "request_key": ("the record of request_key", _RESTORE),
    "event": ("log entry", _RESTORE),
    "meta": ("the field of the hash `meta`", _RESTORE),
}


def is_read_only(reply: object) -> bool:
    """Return whether a reply is the error of a replica, or of a server that became one, for a write."""
    if not isinstance(reply, redis_errors.ResponseError):
        return False
    return isinstance(reply, redis_errors.ReadOnlyError) or _message_of(reply).startswith("READONLY")


def lacks_payload(error: redis_errors.RedisError) -> bool:
    """Return whether a script found no payload that was sent ahead of it (payloads.lua)."""
    return "DIBSPAYLOAD" in str(error)


def _message_of(error: redis_errors.RedisError) -> str:
    # Within a script, Redis 6.2 wraps the message: "Error running script (…): @user_script: 234: -OOM …".
    return _SCRIPT_PREFIX.sub("", str(error))


def translate_error(error: redis_errors.RedisError, url: str) -> StorageError:
    """Convert an error reply to an error of dibs. After an error reply, no key has changed."""
    message = _message_of(error)
    if isinstance(error, AUTHENTICATION) or message.startswith("NOAUTH"):
        return StorageUnavailable(
            f"{url} refuses the name or password in the URL; correct them, or remove them if it has none"
        )
    if is_read_only(error):
        return StorageReadOnly(f"{url} is a read-only replica; give the address of its primary")
    if isinstance(error, redis_errors.OutOfMemoryError) or message.startswith("OOM"):
        return StorageFull(f"{url} has reached its maxmemory; raise it, or wait until jobs end, and retry")
    if isinstance(error, redis_errors.NoPermissionError) or message.startswith("NOPERM"):
        return StorageUnavailable(f"{url} does not permit a command that dibs needs: {message}")
    if isinstance(error, TRANSIENT) or lacks_payload(error) or message.startswith(UNAVAILABLE_CODES):
        return StorageUnavailable(f"{url} cannot serve at the moment: {message}", passes=True)
    if "cluster support disabled" in message:
        return StorageUnavailable(f"{url} is a single server: write redis:// instead of redis+cluster://")
    if found := _DAMAGED.search(message):
        prefix, id = (bytes.fromhex(part).decode("utf-8", "replace") for part in found.groups()[1:])
        return damaged_error(url, queue_of_prefix(prefix), found[1], id, ". No key was changed")
    if found := _WRONG_TYPE.search(message):
        return _to_damaged_error(url, f"key {found[1]} is a {found[2]}, not a {found[3]}")
    if "WRONGTYPE" in message:
        return _to_damaged_error(url, "a key with a name of dibs has another Redis type")
    return StorageError(f"{url} refused the command: {message}")


def damaged_error(url: str, queue: str, part: str, id: str, effect: str = "") -> StorageDamaged:
    """Return the error for a record that cannot be read. `part` is a key of _PARTS.

    `effect` ends the message. It is empty for a record in the reply of a call that has succeeded.
    """
    what, remedy = _PARTS[part]
    return StorageDamaged(f"{url}: {what} {id!r} in queue {queue!r} is damaged; {remedy}{effect}")


def _to_damaged_error(url: str, problem: str) -> StorageDamaged:
    return StorageDamaged(
        f"{url}: {problem}; rename the key, or open dibs with another prefix. No key was changed"
    )
