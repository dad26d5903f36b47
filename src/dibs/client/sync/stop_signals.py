"""Stop signals of this process, and the callbacks that they are passed to while workers run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from attrs import define, field

#: Signals that stop a worker: SIGTERM from a service manager, SIGINT from Ctrl-C, SIGHUP from a terminal that
#: is closed.
STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name)
)
#: Called for each stop signal, on the main thread, between two steps of any code. A worker adds one.
SIGNAL_LISTENERS: Final[list[Callable[[], object]]] = []


@define
class _Forwarding:
    """The signals that `forward_stop_signals` has taken over, with the handlers to restore."""

    blocks: int = 0
    previous: dict[int, Any] = field(factory=dict)


_forwarding: Final = _Forwarding()


@contextmanager
def forward_stop_signals() -> Iterator[None]:
    """Pass the stop signals to SIGNAL_LISTENERS within the block. Use it on the main thread only.

    Blocks may overlap in any order: the first takes the signals over, and the end of the last one restores
    the handlers of the program. A handler that the program sets meanwhile stays.

    The block uses signal.signal. With loop.add_signal_handler, the event loop would forget a handler that the
    program added to it. Such a handler is called within the block, too.
    """
    if not _forwarding.blocks:
        _take_over()
    _forwarding.blocks += 1
    try:
        yield
    finally:
        _forwarding.blocks -= 1
        if not _forwarding.blocks:
            _restore()


def _take_over() -> None:
    for number in STOP_SIGNALS:
        handler = signal.getsignal(number)
        # None: the handler is not of Python, and could not be restored.
        if handler is not None and not leaves_alone(number, handler):
            _forwarding.previous[number] = handler
            signal.signal(number, _forward)


def leaves_alone(number: int, handler: Any) -> bool:
    """Return whether workers leave this signal to the program: SIGHUP, unless its action is the default.

    Daemons use SIGHUP to read their settings again, and nohup ignores it.
    """
    return number == getattr(signal, "SIGHUP", None) and handler is not signal.SIG_DFL


def _restore() -> None:
    for number, handler in _forwarding.previous.items():
        if signal.getsignal(number) is _forward:
            signal.signal(number, handler)
    _forwarding.previous.clear()


def _forward(number: int, frame: FrameType | None) -> None:
    handler = _forwarding.previous.get(number)
    if SIGNAL_LISTENERS:
        for listener in tuple(SIGNAL_LISTENERS):
            listener()
    elif callable(handler):
        handler(number, frame)
    elif handler is not None:
        # The worker has not added its listener yet, or has removed it: apply the previous action, which
        # is SIG_DFL or SIG_IGN.
        signal.signal(number, handler)
        signal.raise_signal(signal.Signals(number))
