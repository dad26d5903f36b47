"""A wrapper that repeats a transaction after a conflict, as applications have one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from psycopg import errors

RETRIED: Final = (errors.SerializationFailure, errors.DeadlockDetected)


async def retried(connection: Any, work: Callable[[], Awaitable[Any]], *, tries: int = 3) -> Any:
    """Run `work` in a transaction. After a serialization failure or a deadlock, run it again."""
    for left in reversed(range(tries)):
        try:
            async with connection.transaction():
                return await work()
        except RETRIED:
            if not left:
                raise
    return None
