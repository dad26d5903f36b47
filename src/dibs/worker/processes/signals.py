"""Stop signals (SIGTERM, SIGINT and SIGHUP). The supervisor acts on them; its child processes ignore them."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from dibs.client.sync.stop_signals import (
    SIGNAL_LISTENERS,
    STOP_SIGNALS,
    forward_stop_signals,
    leaves_alone,
)


def leave_signals_to_parent() -> None:
    """Ignore the stop signals in this process: terminals and systemd send them to the whole process group.

    The signal handler is an empty function, because programs that a job starts would inherit SIG_IGN. Under
    nohup SIGHUP stays ignored, also in these programs.
    """
    for number in STOP_SIGNALS:
        if not leaves_alone(number, signal.getsignal(number)):
            signal.signal(number, _do_nothing)


def _do_nothing(_number: int, _frame: object) -> None:
    return


@contextmanager
def on_stop_signal(callback: Callable[[], None]) -> Iterator[None]:
    """Call `callback` on the running loop for each stop signal within the block.

    Only the main thread can receive signals. On another thread, call `callback` for the signals that the main
    thread passes on while it is in `forward_stop_signals`.
    """
    loop = asyncio.get_running_loop()

    def listener() -> None:
        loop.call_soon_threadsafe(callback)

    SIGNAL_LISTENERS.append(listener)
    try:
        is_main = threading.current_thread() is threading.main_thread()
        with forward_stop_signals() if is_main else nullcontext():
            yield
    finally:
        SIGNAL_LISTENERS.remove(listener)
