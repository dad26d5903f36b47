"""A storage object that several event loops use, although it belongs to one of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any, NoReturn

from attrs import frozen

from dibs.errors import NotRunning, OutcomeUnknown, Refused
from dibs.storage.protocol import Storage


def is_thread_safe(storage: Storage) -> bool:
    """Return whether several event loops may use the object, by its optional attribute `thread_safe`."""
    return bool(getattr(storage, "thread_safe", False))


@frozen(eq=False)
class ForwardedStorage:
    """A storage on another event loop, its home: each verb runs there, and the caller awaits the result.

    `__getattr__` forwards all other attributes.
    """

    _storage: Storage
    _home: asyncio.AbstractEventLoop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._storage, name)
        if not inspect.iscoroutinefunction(value):
            return value

        async def forward(*args: Any, **kwargs: Any) -> Any:
            return await self._run_at_home(value(*args, **kwargs))

        return forward

    def in_transaction(self, _connection: Any) -> NoReturn:
        """Raise Refused: the connection belongs to another event loop than the storage."""
        raise Refused(
            f"{self._storage.url} is open on another event loop, so it cannot use this connection; enter "
            "the app on this loop first, or give the app a URL instead of a storage object",
            field="connection",
        )

    async def _run_at_home(self, verb: Coroutine[Any, Any, Any]) -> Any:
        try:
            reply = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(verb, self._home))
        except RuntimeError:
            verb.close()
            raise NotRunning(
                f"the event loop on which {self._storage.url} was open has ended; enter the app again"
            ) from None
        try:
            return await reply
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise OutcomeUnknown(
                f"the event loop on which {self._storage.url} was open ended before the reply arrived; the "
                "call may or may not have happened"
            ) from None
