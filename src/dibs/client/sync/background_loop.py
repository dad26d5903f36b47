"""From blocking code to the loop where the app is open: one background thread for all apps of a process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import selectors
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.connection.thread_callbacks import CALLER_THREAD, CallerThread
from dibs.errors import ConfigurationError, NotRunning

T = TypeVar("T")


class BackgroundLoop:
    """A thread that runs an event loop; after a fork the child starts its own."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop, running."""
        if self._process != os.getpid():
            # The parent's lock may have been held at the moment of the fork, by a thread that is not here.
            self._starting, self._loop, self._process = threading.Lock(), None, os.getpid()
        with self._starting:
            if self._loop is None:
                self._loop = _new_loop()
                threading.Thread(target=self._loop.run_forever, name="dibs-sync", daemon=True).start()
            return self._loop


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        # The Proactor loop of Windows lacks what some drivers need.
        return asyncio.SelectorEventLoop(selectors.SelectSelector())
    return asyncio.new_event_loop()


BACKGROUND = BackgroundLoop()


def run(handle: StorageHandle, form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a call where the app is open, else in the background, and return what it returns.

    Raises ConfigurationError on a thread whose event loop is running, naming the async form.
    """
    refuse_on_loop(form, call)
    return _awaited(asyncio.run_coroutine_threadsafe(call, handle.loop or BACKGROUND.loop()), form)


def run_with_connection(handle: StorageHandle, form: str, call: Coroutine[Any, Any, T]) -> T:
    """The same for a call that may use a connection of this thread's own, and then does it here."""
    refuse_on_loop(form, call)
    caller = CallerThread()
    # The call begins in a copy of this context, and so knows whom to ask.
    before = CALLER_THREAD.set(caller)
    try:
        future = asyncio.run_coroutine_threadsafe(call, handle.loop or BACKGROUND.loop())
    finally:
        CALLER_THREAD.reset(before)
    return _awaited(future, form, caller)


def _awaited(
    future: concurrent.futures.Future[T], form: str, waiting: CallerThread | _Lookout | None = None
) -> T:
    """Return what the call returns; `waiting` is what this thread does until then, if not only that."""
    try:
        if waiting is not None:
            waiting.wait(future)
        return future.result()
    except concurrent.futures.CancelledError:
        raise NotRunning(f"the event loop where the app was open ended during {form}") from None
    except RuntimeError as error:
        if not _python_exits():
            raise
        raise NotRunning(f"Python is exiting, and could not do {form} any more: {error}") from error
    except BaseException:
        # Ctrl-C ends the wait of this thread, so it must end the call as well.
        future.cancel()
        raise


def _python_exits() -> bool:
    """Tell whether the main thread is over: from then on, what waits for exit runs, and no new thread."""
    return not threading.main_thread().is_alive()


#: Signals that a worker hears.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
#: Who, on whatever thread, wants to be told of signals that arrive at a main thread waiting in `run_on_this_thread`.
SIGNAL_LISTENERS: Final[list[Callable[[], object]]] = []


#: Seconds that a signal may wait for a main thread in `run_on_this_thread`.
SIGNAL_POLL: Final = 0.2


def run_on_this_thread(handle: StorageHandle, form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run a long call on a loop of this thread, where signals arrive.

    If the app is open elsewhere it runs there, and what arrives here is passed on to LISTENERS.
    """
    refuse_on_loop(form, call)
    if handle.loop is None:
        return asyncio.run(call)
    if threading.current_thread() is not threading.main_thread():
        return run(handle, form, call)
    with _passing_on():
        future = asyncio.run_coroutine_threadsafe(call, handle.loop)
        return _awaited(future, form, _Lookout())


class _Lookout:
    """Waits on the main thread, and looks up now and then.

    A signal that arrives just before the wait begins does not end it: its handler would run after it.
    """

    def wait(self, future: concurrent.futures.Future[Any]) -> None:
        while not future.done():
            concurrent.futures.wait([future], timeout=SIGNAL_POLL)


@contextmanager
def _passing_on() -> Iterator[None]:
    before = {int(number): signal.getsignal(number) for number in SIGNALS}

    def pass_on(number: int, frame: FrameType | None) -> None:
        handler = before[number]
        if SIGNAL_LISTENERS:
            for told in tuple(SIGNAL_LISTENERS):
                told()
        elif callable(handler):
            handler(number, frame)
        else:
            # Nobody listens yet, or any more: it does what it would have done.
            signal.signal(number, handler)
            signal.raise_signal(signal.Signals(number))

    for number in SIGNALS:
        signal.signal(number, pass_on)
    try:
        yield
    finally:
        for told_before, handler in before.items():
            signal.signal(told_before, handler)


def iterate(handle: StorageHandle, form: str, items: AsyncIterator[T]) -> Iterator[T]:
    """Yield what an async iterator yields."""
    while True:
        try:
            yield run(handle, form, _next(items))
        except _End:
            return


class _End(Exception):
    """StopAsyncIteration cannot pass through a future."""


async def _next(items: AsyncIterator[T]) -> T:
    try:
        return await anext(items)
    except StopAsyncIteration:
        raise _End from None


def next_item(handle: StorageHandle, form: str, items: AsyncIterator[T]) -> T:
    """Return the next of an async iterator, for an iterator's own __next__."""
    try:
        return run(handle, form, _next(items))
    except _End:
        raise StopIteration from None


def refuse_on_loop(form: str, call: Coroutine[Any, Any, Any]) -> None:
    """Refuse to block a running event loop, and say what to write instead; or a Python that has ended."""
    if sys.is_finalizing():
        # No thread runs any more but this one, so it would wait for ever.
        call.close()
        raise NotRunning(f"Python has all but exited, which is too late for {form}: close the app before")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    call.close()
    raise ConfigurationError(
        f"a blocking call would stop the event loop that runs on this thread; write instead: {form}"
    )
