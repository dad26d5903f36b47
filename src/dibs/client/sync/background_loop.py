"""Runs async calls for blocking code, on the event loop of the app or on a background thread."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Final, TypeVar

from dibs.client.connection.greenlets import start_loop_on_system_thread
from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.connection.thread_callbacks import CALLER_THREAD, CallerThread
from dibs.client.sync.stop_signals import forward_stop_signals
from dibs.errors import ConfigurationError, NotRunning
from dibs.storage.monkey_patches import eventlet_has_patched, gevent_has_patched

T = TypeVar("T")


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
    """Run a call on the loop where the app is open, or else on the background loop; return its result.

    Raises ConfigurationError on a thread with a running event loop; the message recommends `async_form`.
    """
    refuse_on_loop(async_form, call)
    return _wait_for_result(
        asyncio.run_coroutine_threadsafe(call, handle.loop or BACKGROUND.loop()), async_form
    )


def run_with_connection(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a call as `run` does. A blocking connection that the call uses is used on this thread."""
    refuse_on_loop(async_form, call)
    caller = CallerThread()
    # The call starts in a copy of this context, so it finds this thread in CALLER_THREAD.
    token = CALLER_THREAD.set(caller)
    try:
        future = asyncio.run_coroutine_threadsafe(call, handle.loop or BACKGROUND.loop())
    finally:
        CALLER_THREAD.reset(token)
    return _wait_for_result(future, async_form, caller)


def _wait_for_result(
    future: concurrent.futures.Future[T], async_form: str, waiter: CallerThread | _PollingWaiter | None = None
) -> T:
    """Wait for the result of a call and return it. `waiter` replaces the plain wait until it is done."""
    if gevent_has_patched() and not isinstance(waiter, CallerThread):
        waiter = CallerThread()
    try:
        if waiter is not None:
            waiter.wait(future)
        return future.result()
    except concurrent.futures.CancelledError:
        raise NotRunning(f"the event loop where the app was open ended during {async_form}") from None
    except RuntimeError as error:
        if not _python_is_exiting():
            raise
        raise NotRunning(f"Python is exiting, so {async_form} could not run: {error}") from error
    except BaseException:
        # Ctrl-C ends the wait of this thread, so it must cancel the call as well.
        future.cancel()
        raise


def _python_is_exiting() -> bool:
    """Return whether the main thread has ended. After that atexit functions run and no thread can start."""
    return not threading.main_thread().is_alive()


#: Seconds between two checks of `_PollingWaiter`, and so the longest delay of a signal.
SIGNAL_POLL_SECONDS: Final = 0.2


def run_on_this_thread(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a long call, such as `app.work`, on a new loop of this thread: the main thread gets the signals.

    If the app is open on another thread, the call runs there, and the main thread forwards the stop signals
    to SIGNAL_LISTENERS.
    """
    refuse_on_loop(async_form, call)
    if handle.loop is None:
        return asyncio.run(call)
    if threading.current_thread() is not threading.main_thread():
        return run(handle, async_form, call)
    with forward_stop_signals():
        future = asyncio.run_coroutine_threadsafe(call, handle.loop)
        return _wait_for_result(future, async_form, _PollingWaiter())


class _PollingWaiter:
    """Waits in short steps, so that the main thread runs the handlers of signals between them.

    A signal that arrives just before a long wait begins would not interrupt that wait, and the signal's
    handler would run only after the wait.
    """

    def wait(self, future: concurrent.futures.Future[Any]) -> None:
        while not future.done():
            concurrent.futures.wait([future], timeout=SIGNAL_POLL_SECONDS)


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
    if sys.is_finalizing():
        # All other threads have stopped, so this thread would wait for ever.
        call.close()
        raise NotRunning(f"Python is exiting, so {async_form} cannot run; close the app before")
    if eventlet_has_patched():
        call.close()
        raise ConfigurationError(_EVENTLET_MESSAGE)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    call.close()
    raise ConfigurationError(
        f"a blocking call would stop the event loop of this thread; write instead: {async_form}"
    )


_EVENTLET_MESSAGE: Final = (
    "eventlet has patched the threads of this process, and a blocking call would stop all its greenlets; "
    "use gevent or threads instead, for example gunicorn's worker class gevent or gthread"
)
