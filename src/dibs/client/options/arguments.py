"""Checks of arguments that several calls of the client take: lists, errors and waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import Refused


def check_list(field: str, items: Any) -> None:
    """Raise Refused for a str and for a value without items. A str would count as one item per letter."""
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise Refused(f"{field} is {items!r:.80}; pass a list", field=field)


def check_error(error: object) -> None:
    """Raise Refused unless `error` is an exception object. An exception class and a text are refused, too."""
    if not isinstance(error, BaseException):
        raise Refused(f"error is {error!r:.80}; pass an exception, as in ValueError('...')", field="error")


def wait_ms(wait: Seconds) -> int:
    """Return a wait in ms. Raises Refused unless it is 0 or more."""
    ms = duration_ms("wait", wait)
    if ms < 0:
        raise Refused(f"wait is {wait}; it must be 0 or more seconds, or None for no limit", field="wait")
    return ms
