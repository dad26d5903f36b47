"""The log configuration that a child process takes over from its supervisor."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Any

from msgspec import Struct


class LogConfig(Struct, frozen=True, kw_only=True):
    """A log configuration as data. A class is given as "module:class"; the child creates the instance."""

    #: The level of the root logger; 0 if the process has configured no logging.
    level: int = 0
    #: The format string for logging.Formatter.
    format: str = logging.BASIC_FORMAT
    #: The class of the formatter; "" for logging.Formatter.
    formatter: str = ""
    #: The classes of the filters.
    filters: tuple[str, ...] = ()


def current_log_config() -> LogConfig:
    """Return the configuration of this process: the root logger's level and its first handler."""
    if not logging.root.handlers:
        return LogConfig()
    handler = logging.root.handlers[0]
    formatter = handler.formatter
    return LogConfig(
        level=logging.root.getEffectiveLevel(),
        format=(formatter and formatter._fmt) or logging.BASIC_FORMAT,  # noqa: SLF001 - logging has no other way
        formatter=""
        if formatter is None or type(formatter) is logging.Formatter
        else _class_reference(formatter),
        filters=tuple(_class_reference(each) for each in handler.filters),
    )


def apply_log_config(config: LogConfig) -> None:
    """Add a handler with this configuration to the root logger, unless the application has added one.

    Leave out formatters and filters whose classes need arguments or cannot be imported.
    """
    if not config.level or logging.root.handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(_create_instance(config.formatter) or logging.Formatter(config.format))
    for name in config.filters:
        if filter_ := _create_instance(name):
            handler.addFilter(filter_)
    logging.root.addHandler(handler)
    logging.root.setLevel(config.level)


def _class_reference(instance: object) -> str:
    return f"{type(instance).__module__}:{type(instance).__qualname__}"


def _create_instance(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
