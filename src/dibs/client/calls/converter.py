"""The interface of a converter, and the error of a type hint that has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from attrs import frozen

from dibs.client.calls.hint_support import describe
from dibs.client.options.value_hooks import dec_hook


class UnsupportedHintError(TypeError):
    """Raised for a type hint without a converter. The message names the type and the reason."""

    def __init__(self, hint: Any, reason: str) -> None:
        super().__init__(f"{describe(hint)}: {reason}")


class Converter(Protocol):
    """Encodes and decodes the values of one type hint, together with a serde."""

    def dump(self, value: Any, /) -> Any:
        """Return a value of the hint as data that a serde encodes; other values unchanged."""

    def load(self, plain: Any, /) -> Any:
        """Return the data that a serde has decoded as a value of the hint. Raises ValueError, TypeError."""


@frozen
class FunctionConverter:
    """A converter of two functions."""

    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]


def convert(plain: Any, hint: Any) -> Any:
    """Return decoded data as a hint that msgspec knows. Raises ValueError."""
    return msgspec.convert(plain, hint, dec_hook=dec_hook, str_keys=True)


def unchanged(value: Any) -> Any:
    """Return `value` itself, as `dump` or `load` of a hint whose values need no conversion."""
    return value
