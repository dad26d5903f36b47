"""A storage whose verbs fail as a test orders."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

from dibs.app import Dibs
from dibs.storage.protocol import Storage


class FaultyStorage:
    """A storage that passes calls to another storage, except the calls that a test made fail."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.capabilities = storage.capabilities
        self._faults: dict[str, list[tuple[str, Any]]] = {}
        self.calls: list[str] = []
        self._called = asyncio.Event()
        #: The verb and first argument of each call.
        self.asked: list[tuple[str, Any]] = []

    def fail(self, verb: str, error: Exception, *, after: bool = False) -> None:
        """Make the next call of a verb raise `error`: instead of the real call, or after it."""
        self._faults.setdefault(verb, []).append(("after" if after else "before", error))

    def succeed_again(self, verb: str) -> None:
        """Remove the planned faults of a verb."""
        self._faults.pop(verb, None)

    def answer(self, verb: str, answer: Any) -> None:
        """Make the next call of a verb return `answer` instead of the real call."""
        self._faults.setdefault(verb, []).append(("answer", answer))

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition`, checked after each call, is true."""
        async with asyncio.timeout(60):
            while not condition():
                self._called.clear()
                await self._called.wait()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)
        if not inspect.iscoroutinefunction(real):
            return real

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self._called.set()
            self.asked.append((name, args[0] if args else None))
            value: Any
            when, value = self._faults[name].pop(0) if self._faults.get(name) else ("", None)
            if when == "answer":
                return value
            if when == "before":
                raise value
            result = await real(*args, **kwargs)
            if when == "after":
                raise value
            return result

        return call


F = TypeVar("F", bound=FaultyStorage)


def faulty_storage(app: Dibs) -> AbstractAsyncContextManager[FaultyStorage]:
    """Put a faulty storage between an open app and its storage, within a block."""
    return replace_storage(app, FaultyStorage)


@asynccontextmanager
async def replace_storage(app: Dibs, kind: Callable[[Storage], F]) -> AsyncIterator[F]:
    """Replace the storage of an open app by `kind(storage)`, within a block."""
    opened = app._storage_handle.opened
    kept, storage = opened.storage, kind(opened.storage)
    opened.storage = storage
    try:
        yield storage
    finally:
        opened.storage = kept
