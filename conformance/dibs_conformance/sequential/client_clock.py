"""Shifts the clock of this process, as Python code sees it, to test the time of a storage.

The kit cannot move the clock of a machine or of a server. A storage must get its time from one clock
(contract 1, Time). If that is the clock of a server, the clock of a client has no influence. If it is the
clock of the machine, the shift is a step of that clock.
"""

from __future__ import annotations

import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final, Self
from unittest.mock import patch

_time, _time_ns, _datetime = time.time, time.time_ns, dt.datetime


@contextmanager
def shifted_clock(shift: int) -> Iterator[None]:
    """Shift `time.time`, `time.time_ns` and `datetime.now` by `shift` ms, in all loaded modules."""
    replaced = shifted_functions(shift)
    with ExitStack() as stack:
        for module in [*sys.modules.values()]:
            for name, value in [*getattr(module, "__dict__", {}).items()]:
                other = replaced.get(id(value))
                if other is not None and module is not sys.modules[__name__]:
                    stack.enter_context(patch.object(module, name, other))
        yield


def shifted_functions(shift: int) -> dict[int, Any]:
    """Return the shifted functions and class, by the `id` of the originals."""

    class ShiftedDatetime(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return super().now(tz) + dt.timedelta(milliseconds=shift)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(dt.UTC).replace(tzinfo=None)

    shifted_time: Callable[[], float] = lambda: _time() + shift / 1000  # noqa: E731 - it has no other name
    shifted_time_ns: Callable[[], int] = lambda: _time_ns() + shift * 1_000_000  # noqa: E731
    return {id(_time): shifted_time, id(_time_ns): shifted_time_ns, id(_datetime): ShiftedDatetime}


#: The ms by which the clock of a client is shifted, far more than any step of a real clock during a test.
SHIFT: Final = 3_600_000
