"""Runs async calls for blocking code, on the event loop of the app or on a background thread; an enqueue
runs on the thread of its caller, if the storage can do so.

A `LoopCall` is a call of a blocking thread that runs on an event loop. It ends, with an error, if that
loop ends first.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from typing import Any, Final, Generic, TypeVar, cast

from dibs.client.connection.caller_thread import (
    CALLER_THREAD,
    CHECK_SECONDS,
    CallerThread,
    current_handler_thread,
    is_after_end,
    start_loop_on_system_thread,
)
from dibs.client.connection.storage_handle import StorageHandle, start_on_thread, thread_enqueues
from dibs.client.sync.stop_signals import forward_stop_signals
from dibs.errors import ConfigurationError, DibsError, NotRunning, OutcomeUnknown
from dibs.storage.monkey_patches import eventlet_has_patched, gevent_has_patched
from dibs.storage.running_loop import current_loop, is_in_trio

T = TypeVar("T")

#: The async forms of the calls that change no job. If their event loop ends they raise NotRunning, and all
#: others OutcomeUnknown.
_READS: Final = frozenset(
    (
        "async for",
        "async for ... in ticket.progress(...)",
        "async with",
        "await app.close(...)",
        "await app.open(...)",
        "await app.queues(...)",
        "await app.work(...)",
        "await assert_enqueued(...)",
        "await metrics.text()",
        "await queue.counts(...)",
        "await queue.get(...)",
        "await ticket.result(...)",
        "await ticket.status(...)",
    )
)


class LoopCall(Generic[T]):
    """A coroutine that an event loop runs for another thread. `future` gets its result or error."""

    def __init__(self, async_form: str, call: Coroutine[Any, Any, T]) -> None:
        self.future: concurrent.futures.Future[T] = concurrent.futures.Future()
        self.async_form = async_form
        self._call = call
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the call on the thread of `loop`, in a copy of this context.

        Raises RuntimeError if the loop is closed.
        """
        self._loop, self.future = loop, concurrent.futures.Future()
        loop.call_soon_threadsafe(self._start_task, self.future)

    def is_done(self, caller: CallerThread | None = None) -> bool:
        """Wait for the end of the call and return True; False if its loop ended before it started the call.

        `caller` runs callbacks of the call during the wait. The wait has steps of CHECK_SECONDS, because a
        signal that arrives just before a long wait would not interrupt it: its handler runs between steps.
        """
        if caller is not None:
            caller.wait(self.future, self._check_loop)
        while not self.future.done():
            try:
                self.future.exception(CHECK_SECONDS)
            except TimeoutError:
                self._check_loop()
            except concurrent.futures.CancelledError:
                break
        return not self.future.cancelled()

    def _check_loop(self) -> None:
        """Cancel the call if its loop has ended without starting it; fail it if its loop was closed later."""
        assert self._loop is not None, "the call was started"  # noqa: S101
        if self._loop.is_running() or self.future.cancel():
            return
        if self._loop.is_closed():
            self._fail(self._ended_error())

    def cancel(self) -> None:
        """Cancel the call on its loop. Any thread may call this."""
        if self.future.cancel():
            # The loop has not started the call and will not start it.
            self._call.close()
        elif self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._cancel_task)

    def _start_task(self, future: concurrent.futures.Future[T]) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(future))

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, future: concurrent.futures.Future[T]) -> None:
        # Here and not in `_start_task`: a loop that ends may cancel the task before it runs.
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = await self._call
        except asyncio.CancelledError:
            self._fail(self._ended_error())
            raise
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise
        else:
            if not self.future.done():
                self.future.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    def _ended_error(self) -> DibsError:
        if self.async_form in _READS:
            return NotRunning(
                f"the event loop where the app was open ended during {self.async_form}; repeat the call"
            )
        return OutcomeUnknown(
            f"the event loop where the app was open ended during {self.async_form}, so the call may or may "
            "not have happened"
        )


class BackgroundLoop:
    """An event loop on a thread, started at the first use. All apps of a process share one.

    After a fork the child process starts a new thread, because the thread of the parent does not exist there.
    """

    def __init__(self) -> None:
        self._start_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop. The first call in a process starts it on a daemon thread."""
        if self._process != os.getpid():
            # At the fork a thread of the parent may have held the lock; that thread does not exist here.
            self._start_lock, self._loop, self._process = threading.Lock(), None, os.getpid()
        with self._start_lock:
            if self._loop is None:
                self._loop = start_loop_on_system_thread() if gevent_has_patched() else _start_loop()
            return self._loop


def _start_loop() -> asyncio.AbstractEventLoop:
    loop = _new_loop()
    threading.Thread(target=loop.run_forever, name="dibs-sync", daemon=True).start()
    return loop


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        # psycopg cannot use the ProactorEventLoop, the default of Windows.
        return asyncio.SelectorEventLoop(selectors.SelectSelector())
    return asyncio.new_event_loop()


BACKGROUND = BackgroundLoop()


def run(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a call on a loop where the app was entered, or else on the background loop; return its result.

    Raises ConfigurationError on a thread with a running event loop; the message recommends `async_form`.
    """
    if current_handler_thread() is not None:
        return run_with_connection(handle, async_form, call)
    refuse_on_loop(async_form, call)
    return _wait_for_result(_start_call(handle, async_form, call))


def run_with_connection(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a call as `run` does. A blocking connection that the call uses is used on this thread."""
    refuse_on_loop(async_form, call)
    caller = current_handler_thread() or CallerThread()
    # The call starts in a copy of this context, so it finds this thread in CALLER_THREAD.
    token = CALLER_THREAD.set(caller)
    try:
        started = _start_call(handle, async_form, call)
    finally:
        CALLER_THREAD.reset(token)
    return _wait_for_result(started, caller)


def _start_call(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> LoopCall[T]:
    started = LoopCall(async_form, call)
    if (loop := handle.loop) is not None:
        with suppress(RuntimeError):  # the loop was closed just now
            started.start(loop)
            return started
    started.start(BACKGROUND.loop())
    return started


def _wait_for_result(call: LoopCall[T], caller: CallerThread | None = None) -> T:
    """Wait for the result of a call and return it. `caller` runs callbacks of the call during the wait.

    If the event loop of the call ends before it starts the call, the call runs on the background loop.
    """
    if gevent_has_patched() and caller is None:
        caller = CallerThread()
    try:
        while not call.is_done(caller):
            call.start(BACKGROUND.loop())
        return call.future.result()
    except RuntimeError as error:
        if not _python_is_exiting():
            raise
        raise NotRunning(f"Python is exiting, so {call.async_form} could not run: {error}") from error
    except BaseException:
        # Ctrl-C ends the wait of this thread, so it must cancel the call as well.
        call.cancel()
        raise


def _python_is_exiting() -> bool:
    """Return whether the main thread has ended. After that atexit functions run and no thread can start."""
    return not threading.main_thread().is_alive()


def run_on_this_thread(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a long call, such as `app.work`, on a new loop of this thread: the main thread gets the signals.

    If the app was entered on another thread, the call runs there, and the main thread forwards the stop
    signals to SIGNAL_LISTENERS.
    """
    refuse_on_loop(async_form, call)
    if handle.loop is None:
        return asyncio.run(call)
    if threading.current_thread() is not threading.main_thread():
        return run(handle, async_form, call)
    with forward_stop_signals():
        return run(handle, async_form, call)


def iterate(handle: StorageHandle, async_form: str, items: AsyncIterator[T]) -> Iterator[T]:
    """Yield the items of an async iterator to blocking code, waiting for each on the event loop."""
    while True:
        try:
            yield run(handle, async_form, _next_or_end(items))
        except _EndOfIteration:
            return


class _EndOfIteration(Exception):
    """Stands for StopAsyncIteration, which cannot be the exception of a future."""


async def _next_or_end(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _EndOfIteration from None


def next_item(handle: StorageHandle, async_form: str, items: AsyncIterator[T]) -> T:
    """Wait for the next item of an async iterator and return it. Raises StopIteration at its end."""
    try:
        return run(handle, async_form, _next_or_end(items))
    except _EndOfIteration:
        raise StopIteration from None


def refuse_on_loop(async_form: str, call: Coroutine[Any, Any, Any]) -> None:
    """Raise an error if this thread must not block, and close `call`, which would otherwise warn at its end.

    Raises ConfigurationError on a thread with a running event loop, NotRunning at the end of Python.
    """
    if sys.is_finalizing() or is_after_end():
        # All other threads have stopped, so this thread would wait for ever.
        call.close()
        raise NotRunning(f"Python is exiting, so {async_form} cannot run; close the app before")
    if eventlet_has_patched():
        call.close()
        raise ConfigurationError(_EVENTLET_MESSAGE)
    if current_loop() is None:
        if not is_in_trio():
            return
        async_form = "await trio.to_thread.run_sync(...) around this call"
    call.close()
    raise ConfigurationError(
        f"a blocking call would stop the event loop of this thread; write instead: {async_form}"
    )


_EVENTLET_MESSAGE: Final = (
    "eventlet has patched the threads of this process, and a blocking call would stop all its greenlets; "
    "use gevent or threads instead, for example gunicorn's worker class gevent or gthread"
)


def run_enqueue(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run an enqueue on this thread, as far as it needs no event loop, and the rest as `run_with_connection`.

    A middleware may need an event loop, and under gevent a thread must not wait for a socket.
    """
    refuse_on_loop(async_form, call)
    if handle.enqueue_middleware is not None or gevent_has_patched():
        return run_with_connection(handle, async_form, call)
    opened = handle.opened_on(handle.loop or BACKGROUND.loop())
    target = thread_enqueues(opened, handle.ensure_open)
    if target is None:
        return run_with_connection(handle, async_form, call)
    result, rest = start_on_thread(call, target)
    return cast("T", result) if rest is None else run_with_connection(handle, async_form, rest)
