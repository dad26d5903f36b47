"""Where an app's storage is open: in one process, on one event loop, at first use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from dibs.client.calls.middleware import EnqueueMiddleware
from dibs.client.connection.coalescing import CoalescedCalls
from dibs.client.connection.url import redact_url, resolve_url
from dibs.errors import NotRunning, StorageUnavailable
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage


class OpenStorage:
    """A storage that is open, and where."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.coalesced = CoalescedCalls(storage)
        self.loop = asyncio.get_running_loop()
        self.process = os.getpid()

    @property
    def is_alive(self) -> bool:
        """Whether it can still be used from somewhere: not across a fork, nor once its loop has ended."""
        return self.process == os.getpid() and not self.loop.is_closed()

    async def close(self) -> None:
        """Answer what is under way, then close the storage."""
        await self.coalesced.drain()
        await self.storage.__aexit__(None, None, None)


class StorageHandle:
    """Opens the storage once, however many ask at the same time, and again after a fork or a new loop."""

    def __init__(self, url: str | None, options: dict[str, Any]) -> None:
        self._given = url
        self._options = options
        #: What stands around each enqueue, if anything does.
        self.enqueue_middleware: EnqueueMiddleware | None = None
        self._opened: OpenStorage | None = None
        self._opening: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._kept: tuple[Storage, int] | None = None
        self._entered = 0
        self._closed = False

    @property
    def url(self) -> str:
        """The URL that counts, with its secrets."""
        return resolve_url(self._given)

    @property
    def redacted_url(self) -> str:
        """The place, fit to be shown."""
        if self._opened is not None:
            return self._opened.storage.url
        return redact_url(self._given) if self._given else "not opened yet"

    @property
    def opened(self) -> OpenStorage:
        """What is open. Raises NotRunning."""
        if self._opened is None or not self._opened.is_alive:
            raise NotRunning(_CLOSED if self._closed else _NOT_OPEN)
        return self._opened

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The running loop the storage is open on, if any."""
        opened = self._opened
        return opened.loop if opened and opened.is_alive and opened.loop.is_running() else None

    async def ensure_open(self) -> OpenStorage:
        """Return what is open, opening it at first use. Raises NotRunning, NoStorage, StorageError."""
        opened = self._opened
        if opened is None or opened.loop is not asyncio.get_running_loop() or not opened.is_alive:
            return await self._open()
        return opened

    async def _open(self) -> OpenStorage:
        async with self._lock():
            here = asyncio.get_running_loop()
            if self._closed:
                raise NotRunning(_CLOSED)
            opened = self._opened
            if opened is not None and opened.is_alive:
                if opened.loop is here:
                    return opened
                if opened.loop.is_running():
                    raise NotRunning(_ELSEWHERE)
            self._opened = OpenStorage(await self._own_or_new().__aenter__())
            return self._opened

    def _own_or_new(self) -> Storage:
        """Return a storage to enter: one that nobody else can reach is kept, for its jobs live in it."""
        if self._kept is None:
            storage = open_storage(self.url, **self._options)
            if storage.capabilities.shared:
                return storage
            self._kept = storage, os.getpid()
        storage, process = self._kept
        if process != os.getpid():
            raise StorageUnavailable(f"{storage.url} lives in process {process}: a fork cannot reach it")
        return storage

    def _lock(self) -> asyncio.Lock:
        here = asyncio.get_running_loop()
        if self._opening is None or self._opening[0] is not here:
            self._opening = (here, asyncio.Lock())
        return self._opening[1]

    @asynccontextmanager
    async def opened_temporarily(self) -> AsyncIterator[None]:
        """Have it open for a block; it is closed again, not for good, if nobody had opened it."""
        was_open = self._opened is not None and self._opened.is_alive
        await self.ensure_open()
        # Counted, so that a block inside this one does not end as the outermost, which closes for good.
        self._entered += 1
        try:
            yield
        finally:
            self._entered = max(0, self._entered - 1)
            if not was_open and self._entered == 0:
                await self._shut()

    @contextmanager
    def override(self, storage: Storage) -> Iterator[None]:
        """Have this storage be the place for a block; what was there before is there again, open or not."""
        before = dict(vars(self))
        vars(self).update(
            vars(StorageHandle(storage.url, {})),
            enqueue_middleware=self.enqueue_middleware,
            _kept=(storage, os.getpid()),
        )
        try:
            yield
        finally:
            vars(self).update(before)

    async def enter(self) -> None:
        """Open for a block; also again after a close."""
        self._closed = False
        await self.ensure_open()
        self._entered += 1

    async def leave(self) -> None:
        """Close when the outermost block ends."""
        self._entered = max(0, self._entered - 1)
        if self._entered == 0:
            await self.close()

    async def close(self) -> None:
        """Close the storage; from now on every use raises NotRunning, until it is entered again."""
        self._closed, self._entered = True, 0
        await self._shut()

    async def _shut(self) -> None:
        opened, self._opened = self._opened, None
        if opened is None or not opened.is_alive:
            return
        if opened.loop is asyncio.get_running_loop():
            await opened.close()
        elif opened.loop.is_running():
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(opened.close(), opened.loop))


_CLOSED = "this app was closed; enter it again with `async with app`"
_NOT_OPEN = "this app is not open yet; use `async with app`, or await something of it first"
_ELSEWHERE = (
    "this app is open on another event loop: use it from there, use app.sync, or make another Dibs here"
)
