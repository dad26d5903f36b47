"""How a process of ours writes its log: as its supervisor does, unless its application says otherwise."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from msgspec import Struct


class LogStyle(Struct, frozen=True, kw_only=True):
    """What crosses to a process: names of classes, never objects. Level 0 is no log at all."""

    level: int = 0
    #: A format for logging.Formatter, and where the formatter is of another class "module:class".
    format: str = logging.BASIC_FORMAT
    formatter: str = ""
    filters: tuple[str, ...] = ()


def style_here() -> LogStyle:
    """Return how this process writes its log."""
    if not logging.root.handlers:
        return LogStyle()
    handler = logging.root.handlers[0]
    own = handler.formatter
    return LogStyle(
        level=logging.root.getEffectiveLevel(),
        format=(own and own._fmt) or logging.BASIC_FORMAT,  # noqa: SLF001 - there is no other way to ask
        formatter="" if own is None or type(own) is logging.Formatter else _name(own),
        filters=tuple(_name(each) for each in handler.filters),
    )


def adopt(style: LogStyle) -> None:
    """Write the log here in this style; what cannot be made anew from its name alone is left out."""
    if not style.level or logging.root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_made(style.formatter) or logging.Formatter(style.format))
    for name in style.filters:
        if made := _made(name):
            handler.addFilter(made)
    logging.root.addHandler(handler)
    logging.root.setLevel(style.level)


def _name(thing: object) -> str:
    return f"{type(thing).__module__}:{type(thing).__qualname__}"


def _made(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
