"""Enqueues of a thread without an event loop, which the thread sends itself.

A blocking enqueue runs its coroutine on its own thread, as far as it needs no event loop. With a storage that
has `enqueue_blocking` it ends there. Otherwise it leaves the thread in `move_to_loop`, and the blocking call
continues it on an event loop.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from types import coroutine
from typing import Any, Final, Generic, TypeVar

from attrs import frozen

from dibs.client.connection.open_storage import OpenStorage
from dibs.model.check_jobs import CheckedBatch, check_request
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.direct_enqueue import BlockingEnqueue, with_blocking_enqueue

T = TypeVar("T")


class _Thread(threading.local):
    #: The target of the enqueues that this thread runs now; None outside `start_on_thread`.
    target: ThreadEnqueues | None = None


_THREAD: Final = _Thread()


@frozen(eq=False)
class ThreadEnqueues:
    """The part of an OpenStorage that an enqueue uses, for a thread without an event loop.

    A call holds no slot of `max_pending`, because its thread waits for it.
    """

    #: Returns the storage of the running event loop, opened at first use.
    _ensure_open: Callable[[], Awaitable[OpenStorage]]
    _opened: OpenStorage
    _storage: BlockingEnqueue

    @property
    def slots(self) -> ThreadEnqueues:
        return self

    @property
    def coalesced(self) -> ThreadEnqueues:
        return self

    def acquire(self, _queue: str) -> None:
        return

    def release(self, _turn: None) -> None:
        return

    async def enqueue(
        self, queue: str, request: EnqueueRequest, _expires: float | None = None
    ) -> EnqueueResult:
        """Check one request and enqueue it. Raises Refused, OutcomeUnknown, StorageError."""
        limits = self._opened.limits
        plain = check_request(request, limits)
        batch = CheckedBatch.of((request,), limits, plain=plain)
        answers = self._storage.enqueue_blocking(queue, batch, self._opened.call_timeout)
        if answers is not None:
            return answers[0]
        await move_to_loop()
        return await self._enqueue_on_loop(queue, request)

    async def _enqueue_on_loop(self, queue: str, request: EnqueueRequest) -> EnqueueResult:
        # Another loop than that of `_opened`, if that loop has ended.
        opened = await self._ensure_open()
        if (storage := with_blocking_enqueue(opened.storage)) is not None:
            storage.prepare_blocking()
        turn = opened.slots.acquire(queue)
        try:
            expires = None if turn is None else await turn
            return await opened.coalesced.enqueue(queue, request, expires)
        finally:
            opened.slots.release(turn)


def thread_enqueues(
    opened: OpenStorage | None, ensure_open: Callable[[], Awaitable[OpenStorage]]
) -> ThreadEnqueues | None:
    """Return the target for enqueues on threads; None if the storage is not open or has no such enqueue."""
    if opened is None or not opened.loop.is_running():
        return None
    storage = with_blocking_enqueue(opened.storage)
    return None if storage is None else ThreadEnqueues(ensure_open, opened, storage)


def current_target() -> ThreadEnqueues | None:
    """Return the target of the enqueue that this thread runs without an event loop, or None."""
    return _THREAD.target


def start_on_thread(
    call: Coroutine[Any, Any, T], target: ThreadEnqueues
) -> tuple[T, None] | tuple[None, Coroutine[Any, Any, T]]:
    """Run an enqueue on this thread, as far as it needs no event loop.

    Return its result and None; or None and a coroutine that runs the rest of the call on an event loop.
    """
    _THREAD.target = target
    try:
        call.send(None)
    except StopIteration as end:
        return end.value, None
    finally:
        _THREAD.target = None
    return None, _continue(call)


@coroutine
def move_to_loop() -> Generator[None, None, None]:
    """Suspend the call that runs on a thread, so that it continues on an event loop.

    Only code that `start_on_thread` runs may await this.
    """
    yield


async def _continue(call: Coroutine[Any, Any, T]) -> T:
    return await _Begun(call)


@frozen
class _Begun(Generic[T]):
    """An awaitable for a coroutine that has begun already. `await` accepts only coroutines that have not."""

    _call: Coroutine[Any, Any, T]

    def __await__(self) -> Generator[Any, Any, T]:
        return self._call.__await__()
