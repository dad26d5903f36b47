"""Signals: the supervisor hears them, its processes leave them to it."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dibs.client.sync.background_loop import HEARD, LISTENERS


def leave_to_the_parent() -> None:
    """Do nothing on the signals that end a worker: a terminal and systemd send them to the whole group.

    Handled, not ignored: what a handler starts as a program of its own would inherit an ignored signal.
    """
    for number in HEARD:
        signal.signal(number, _nothing)


def _nothing(_number: int, _frame: object) -> None:
    return


@contextmanager
def heard(told: Callable[[], None]) -> Iterator[None]:
    """Call `told` on each SIGTERM and SIGINT; off the main thread those count that it passes on."""
    loop = asyncio.get_running_loop()
    if threading.current_thread() is not threading.main_thread():
        with _passed_on(lambda: loop.call_soon_threadsafe(told)):
            yield
        return
    before = {number: signal.getsignal(number) for number in HEARD}
    for number in HEARD:
        loop.add_signal_handler(number, told)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


@contextmanager
def _passed_on(told: Callable[[], object]) -> Iterator[None]:
    LISTENERS.append(told)
    try:
        yield
    finally:
        LISTENERS.remove(told)
