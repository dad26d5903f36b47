"""The storage handle of an app: it opens the storage at first use, in one process and on one event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from attrs import define, field

from dibs.client.calls.middleware import EnqueueMiddleware
from dibs.client.connection.coalesced_calls import CoalescedCalls
from dibs.client.connection.queue_retentions import QueueRetentions
from dibs.client.connection.shared_waits import SharedWaits
from dibs.client.connection.url import resolve_url
from dibs.errors import NotRunning, StorageUnavailable
from dibs.storage.addresses import redact_url
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage


class OpenStorage:
    """An open storage, with the process and the event loop that opened it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.coalesced: CoalescedCalls = CoalescedCalls(storage)
        self.retentions: QueueRetentions = QueueRetentions(storage)
        self.waits: SharedWaits = SharedWaits(storage)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.process: int = os.getpid()

    @property
    def is_usable(self) -> bool:
        """True if this process opened the storage and the event loop is not closed."""
        return self.process == os.getpid() and not self.loop.is_closed()

    async def close(self) -> None:
        """Finish the calls in flight, then close the storage."""
        await self.coalesced.drain()
        await self.retentions.drain()
        await self.storage.__aexit__(None, None, None)


# slots=False, because `override` replaces all attributes through vars(self).
@define(eq=False, slots=False)
class StorageHandle:
    """The lazily opened storage of an app.

    Concurrent callers open the storage once. After a fork or on a new event loop the handle opens it again.
    """

    # Not in the repr: both may hold a password, and tools that report frame locals print reprs.
    _url: str | None = field(repr=False)
    _options: dict[str, Any] = field(repr=False)
    #: The middleware of `app.middleware(enqueue=...)`, composed to one.
    enqueue_middleware: EnqueueMiddleware | None = field(default=None, init=False)
    _opened: OpenStorage | None = field(default=None, init=False)
    #: The lock of `_open`, and the event loop that the lock belongs to.
    _open_lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = field(default=None, init=False)
    #: A storage that other processes cannot reach, such as `memory:`, and the id of its process.
    _unshared_storage: tuple[Storage, int] | None = field(default=None, init=False)
    #: Number of `enter` calls without a `leave` so far. The last `leave` closes the storage.
    _entered: int = field(default=0, init=False)
    _closed: bool = field(default=False, init=False)

    @property
    def url(self) -> str:
        """The URL of the storage, with its password. Raises NoStorage if there is no URL."""
        return resolve_url(self._url)

    @property
    def redacted_url(self) -> str:
        """The URL of the storage without its password, for messages."""
        if self._opened is not None:
            return self._opened.storage.url
        return redact_url(self._url) if self._url else "not opened yet"

    @property
    def opened(self) -> OpenStorage:
        """The open storage. Raises NotRunning before the first use and after close."""
        if self._opened is None or not self._opened.is_usable:
            raise NotRunning(_CLOSED_MESSAGE if self._closed else _NOT_OPEN_MESSAGE)
        return self._opened

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that the storage is open on, or None if that loop is not running."""
        opened = self._opened
        return opened.loop if opened and opened.is_usable and opened.loop.is_running() else None

    async def ensure_open(self) -> OpenStorage:
        """Return the storage, opened at first use. Raises NotRunning, NoStorage, StorageError."""
        opened = self._opened
        if opened is None or opened.loop is not asyncio.get_running_loop() or not opened.is_usable:
            return await self._open()
        return opened

    async def _open(self) -> OpenStorage:
        async with self._get_open_lock():
            loop = asyncio.get_running_loop()
            if self._closed:
                raise NotRunning(_CLOSED_MESSAGE)
            opened = self._opened
            if opened is not None and opened.is_usable:
                if opened.loop is loop:
                    return opened
                if opened.loop.is_running():
                    raise NotRunning(_OTHER_LOOP_MESSAGE)
            self._opened = OpenStorage(await self._storage_to_open().__aenter__())
            return self._opened

    def _storage_to_open(self) -> Storage:
        """Return a storage object for the URL.

        A storage such as `memory:` keeps its jobs in the object, so a second call returns the same object.
        """
        if self._unshared_storage is None:
            storage = open_storage(self.url, **self._options)
            if storage.capabilities.shared:
                return storage
            self._unshared_storage = storage, os.getpid()
        storage, process = self._unshared_storage
        if process != os.getpid():
            raise StorageUnavailable(
                f"{storage.url} is in the memory of process {process}: a fork cannot reach it; share jobs "
                "between processes by a file, Redis or Postgres storage"
            )
        return storage

    def _get_open_lock(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._open_lock is None or self._open_lock[0] is not loop:
            self._open_lock = (loop, asyncio.Lock())
        return self._open_lock[1]

    @asynccontextmanager
    async def opened_temporarily(self) -> AsyncIterator[None]:
        """Open the storage for a block, and close it afterwards if it was not open before.

        Unlike `close`, this lets the app open the storage again at its next use.
        """
        was_open = self._opened is not None and self._opened.is_usable
        await self.ensure_open()
        # Count this block as entered. Otherwise the end of an `async with app` inside it would close the app.
        self._entered += 1
        try:
            yield
        finally:
            self._entered = max(0, self._entered - 1)
            if not was_open and self._entered == 0:
                await self._close_storage()

    @contextmanager
    def override(self, storage: Storage) -> Iterator[None]:
        """Use `storage` for a block, and restore the previous state afterwards, open or not."""
        before = dict(vars(self))
        vars(self).update(
            vars(StorageHandle(storage.url, {})),
            enqueue_middleware=self.enqueue_middleware,
            _unshared_storage=(storage, os.getpid()),
        )
        try:
            yield
        finally:
            vars(self).update(before)

    async def enter(self) -> None:
        """Open the storage and count the caller as a user of it. Works after `close`, too."""
        self._closed = False
        await self.ensure_open()
        self._entered += 1

    async def leave(self) -> None:
        """Undo one `enter`. The last `leave` closes the storage."""
        self._entered = max(0, self._entered - 1)
        if self._entered == 0:
            await self.close()

    async def close(self) -> None:
        """Close the storage. Every use raises NotRunning until the next `enter`."""
        self._closed, self._entered = True, 0
        await self._close_storage()

    async def _close_storage(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None or not opened.is_usable:
            return
        if opened.loop is asyncio.get_running_loop():
            await opened.close()
        elif opened.loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.close(), opened.loop))


_CLOSED_MESSAGE = "this app is closed; enter it again with `async with app`"
_NOT_OPEN_MESSAGE = "this app is not open yet; use `async with app`, or await one of its methods first"
_OTHER_LOOP_MESSAGE = (
    "this app is open on another event loop. If app.sync opened it, call app.sync.close() before this loop "
    "starts, and use `async with app` in it; else use the app on its own loop, or create another Dibs here"
)
