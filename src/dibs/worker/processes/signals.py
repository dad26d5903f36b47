"""Stop signals (SIGTERM and SIGINT). The supervisor acts on them; its child processes ignore them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dibs.client.sync.background_loop import SIGNAL_LISTENERS, STOP_SIGNALS


def leave_signals_to_parent() -> None:
    """Ignore the stop signals in this process: terminals and systemd send them to the whole process group.

    The signal handler is an empty function, because programs that a job starts would inherit SIG_IGN.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: object) -> None:
    return


@contextmanager
def on_stop_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on the running loop for each SIGTERM and SIGINT within the block.

    Only the main thread can receive signals. On another thread, call `callback` for the signals that the main
    thread passes on (background_loop.py).
    """
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        with _listen_on_main_thread(lambda: loop.call_soon_threadsafe(callback)):
            yield
        return
    previous = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, callback)
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def _listen_on_main_thread(callback: Callable[[], object]) -> Iterator[None]:
    SIGNAL_LISTENERS.append(callback)
    try:
        yield
    finally:
        SIGNAL_LISTENERS.remove(callback)
