"""A storage that one event loop of one process has open, and the open storages of one process. A storage
object may belong to another event loop: its verbs are then forwarded to that loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterable
from typing import Any, Final, NoReturn
from weakref import WeakSet

from attrs import define, field, frozen

from dibs.client.connection.call_limits import DEFAULT_MAX_PENDING, BoundedStorage, CallSlots
from dibs.client.connection.coalesced_calls import CoalescedCalls, QueueRetentions, storage_limits
from dibs.client.connection.pending_calls import copy_error
from dibs.client.connection.shared_waits import SharedWaits
from dibs.errors import NotRunning, OutcomeUnknown, Refused
from dibs.model.limits import Limits
from dibs.storage.abilities import EndWatches, ability
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


#: The most seconds to wait for the close of a storage at the end of its event loop, or on another event loop,
#: which may be blocked.
CLOSE_TIMEOUT: Final = 5.0
#: Most callers that resume in one iteration of the event loop after they waited for an opening.
MAX_RESUMED: Final = 100


class OpenStorage:
    """A storage that is open on an event loop, with the calls that wait for it there."""

    def __init__(
        self,
        storage: Storage,
        *,
        is_owner: bool = True,
        call_timeout: float | None = None,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        # A storage that no other process can reach never keeps a call waiting.
        seconds = call_timeout if storage.capabilities.shared else None
        self.storage = storage
        self.limits: Limits = storage_limits(storage)
        #: Seconds until a call without an answer ends; None for no limit.
        self.call_timeout: float | None = seconds
        #: The storage whose verbs end at the deadline of a call.
        self.bounded: Storage = BoundedStorage.of(storage, seconds)
        #: The bound on the enqueues of this event loop.
        self.slots: CallSlots = CallSlots(max_pending, seconds, storage.url)
        self.coalesced: CoalescedCalls = CoalescedCalls(storage, seconds, self.slots.is_starting)
        self.retentions: QueueRetentions = QueueRetentions(storage)
        self.waits: SharedWaits = SharedWaits(storage)
        self.end_watches: EndWatches | None = ability(storage, EndWatches)
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        #: True if `close` closes the storage, too. False if other event loops use the same object.
        self.is_owner = is_owner
        #: Closes the storage when the event loop ends; see `close_at_loop_end`.
        self._loop_end: AsyncGenerator[None] | None = None

    async def close(self) -> None:
        """Finish the calls in flight, then close the storage."""
        await self.slots.drain()
        await self.coalesced.drain()
        await self.retentions.drain()
        if self.is_owner:
            await self.storage.__aexit__(None, None, None)

    async def close_at_loop_end(self, opened: dict[asyncio.AbstractEventLoop, OpenStorage]) -> None:
        """Close the storage when its event loop ends, if it is still in `opened` then.

        asyncio.run and other runners call `loop.shutdown_asyncgens` at the end of a loop, which runs the end
        of the async generator that starts here.
        """
        self._loop_end = self._wait_for_loop_end(opened)
        await anext(self._loop_end)

    async def forget_loop_end(self) -> None:
        """End the generator of `close_at_loop_end`. Call it after `close`."""
        if self._loop_end is not None:
            await self._loop_end.aclose()

    async def _wait_for_loop_end(
        self, opened: dict[asyncio.AbstractEventLoop, OpenStorage]
    ) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            if opened.get(self.loop) is self:
                del opened[self.loop]
                if self.is_owner:
                    _forget_users(opened)
                await asyncio.wait_for(self.close(), CLOSE_TIMEOUT)


def _forget_users(opened: dict[asyncio.AbstractEventLoop, OpenStorage]) -> None:
    """Remove the entries whose storage forwards to the owner that ends, so that their loops open it again."""
    for loop, one in tuple(opened.items()):
        if not one.is_owner:
            opened.pop(loop, None)


@define(eq=False)
class Opening:
    """A storage that an event loop is opening, with the callers that wait for it."""

    task: asyncio.Task[OpenStorage]
    _gate: asyncio.Semaphore = field(factory=lambda: asyncio.Semaphore(MAX_RESUMED), init=False)

    async def wait(self) -> OpenStorage:
        """Return the open storage. Raises a copy of the error of the task for each caller.

        At most MAX_RESUMED callers resume in one iteration of the loop, so that a burst does not stall it.
        """
        async with self._gate:
            try:
                # Shielded, so that a cancelled caller does not affect the others.
                return await asyncio.shield(self.task)
            except Exception as error:
                raise copy_error(error) from error


@define(eq=False)
class LoopStorages:
    """The open storages of an app in one process, by event loop.

    The threads of several event loops use it: each single operation on its containers is atomic.
    """

    #: The storage of each event loop. Code that removes an entry must close its storage.
    opened: dict[asyncio.AbstractEventLoop, OpenStorage] = field(factory=dict, init=False)
    #: The unfinished opening of each event loop. All calls of the loop that need the storage wait for it.
    opening: dict[asyncio.AbstractEventLoop, Opening] = field(factory=dict, init=False)
    #: The event loop of each `StorageHandle.enter` without a `leave` so far.
    entered: list[asyncio.AbstractEventLoop] = field(factory=list, init=False)
    #: Held while `entered` and the `_closed` flag of StorageHandle change together, never during an await.
    lock: threading.Lock = field(factory=threading.Lock, init=False)
    _process: int = field(factory=os.getpid, init=False)

    def __attrs_post_init__(self) -> None:
        _ALL_LOOPS.add(self)

    @property
    def is_of_this_process(self) -> bool:
        """False for the storages that the parent of this fork opened."""
        return self._process == os.getpid()

    def any_opened(self) -> OpenStorage | None:
        """Return an open storage of any event loop, or None."""
        return next((one for one in tuple(self.opened.values()) if not one.loop.is_closed()), None)

    def entered_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return a running event loop on which the app was entered, or None.

        A loop that is ending, and has closed its storage, is left out.
        """
        usable = (loop for loop in tuple(self.entered) if loop.is_running() and loop in self.opened)
        return next(usable, None)

    def remove_entered(self, loop: asyncio.AbstractEventLoop) -> None:
        """Remove one entry of `loop`, or else the oldest: `close` may run on another loop than `open`."""
        if loop in self.entered:
            self.entered.remove(loop)
        elif self.entered:
            self.entered.pop(0)

    def forget_closed_loops(self) -> None:
        """Remove the storages of event loops that were closed without `shutdown_asyncgens`."""
        for loop in tuple(self.opened):
            if loop.is_closed():
                self.opened.pop(loop, None)

    async def close_all(self) -> None:
        """Close the storages of all event loops, each on its own loop.

        Wait at most CLOSE_TIMEOUT seconds for the other loops: a blocked one closes its storage later. A
        stopped loop cannot close its storage, which is only forgotten. Users of a storage object close before
        its owner.
        """
        entries = [one for loop in tuple(self.opened) if (one := self.opened.pop(loop, None)) is not None]
        await _close_together(one for one in entries if not one.is_owner)
        await _close_together(one for one in entries if one.is_owner)


#: The storages of every app, also those of the parent of a fork.
_ALL_LOOPS: Final[WeakSet[LoopStorages]] = WeakSet()


async def close_all_apps() -> None:
    """Close the storages of all apps of this process. The next use of an app opens its storage again."""
    for loops in tuple(_ALL_LOOPS):
        if loops.is_of_this_process:
            await loops.close_all()


def has_open_apps() -> bool:
    """Return whether an app of this process has a storage open."""
    return any(loops.opened for loops in tuple(_ALL_LOOPS) if loops.is_of_this_process)


async def close_opened(opened: OpenStorage) -> None:
    """Close a storage on its own event loop. The caller has removed it from `LoopStorages.opened`."""
    try:
        await opened.close()
    finally:
        await opened.forget_loop_end()


async def _close_together(entries: Iterable[OpenStorage]) -> None:
    here, mine = asyncio.get_running_loop(), None
    others: list[asyncio.Future[None]] = []
    for opened in entries:
        if opened.loop is here:
            mine = opened
        elif opened.loop.is_running():
            others.append(
                asyncio.wrap_future(asyncio.run_coroutine_threadsafe(close_opened(opened), opened.loop))
            )
    if mine is not None:
        await close_opened(mine)
    if others:
        done, _late = await asyncio.wait(others, timeout=CLOSE_TIMEOUT)
        for closed in done:
            if not closed.cancelled():
                closed.result()
