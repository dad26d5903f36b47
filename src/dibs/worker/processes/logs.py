"""The console lines of dibs in each process of a worker, beside the logging of the application."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import IO, Any

from msgspec import Struct


class ConsoleHandler(logging.StreamHandler[IO[str]]):
    """A handler for a console. It drops records after its stream was closed, by `>&-` or by a job."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - overrides logging's method
        """Print the error as logging does, unless a stream is closed: then the logging call would raise."""
        if not (_is_closed(self.stream) or _is_closed(sys.stderr)):
            super().handleError(record)


def _is_closed(stream: IO[str] | None) -> bool:
    return stream is None or stream.closed


def add_console_handler(handler: logging.Handler, level: int) -> None:
    """Add a handler that writes to the console, beside the logging that the application has configured.

    - If the root logger has no handler, add it there and set the level.
    - If the application logs to the console already, do nothing.
    - If it logs only elsewhere, for example to a file, add the handler to the logger "dibs", so that lost
      leases and crashes are still seen on the console.
    """
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
        root.setLevel(level)
    elif not any(map(_writes_to_console, root.handlers)):
        add_dibs_handler(handler, level)


def add_dibs_handler(handler: logging.Handler, level: int) -> None:
    """Add a handler to the logger "dibs" if it has none, and set the level if it has none."""
    logger = logging.getLogger("dibs")
    if not logger.handlers:
        logger.addHandler(handler)
        logger.setLevel(logger.level or level)


def _writes_to_console(handler: logging.Handler) -> bool:
    # The handler of rich has the attribute `console` instead of a stream.
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
    return getattr(handler, "stream", None) in streams or hasattr(handler, "console")


def enable_dibs_loggers() -> None:
    """Enable the loggers of dibs again, after dictConfig with its default.

    The default, "disable_existing_loggers": True, disables each logger that exists and is not named. A lost
    lease would go unseen.
    """
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.split(".")[0] == "dibs":
            logger.disabled = False


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
    #: True if this is the handler of the logger "dibs", beside a root logger that writes elsewhere.
    dibs_only: bool = False
    #: The level of the logger "dibs"; 0 if it has none of its own.
    dibs_level: int = 0


def current_log_config() -> LogConfig:
    """Return the configuration of this process: the first handler of the root logger, and its level.

    If the logger "dibs" has a handler, that one stands for it.
    """
    dibs = logging.getLogger("dibs")
    handlers = dibs.handlers or logging.root.handlers
    if not handlers:
        return LogConfig(dibs_level=dibs.level)
    handler = handlers[0]
    formatter = handler.formatter
    return LogConfig(
        dibs_only=bool(dibs.handlers),
        dibs_level=dibs.level,
        level=logging.root.getEffectiveLevel(),
        format=(formatter and formatter._fmt) or logging.BASIC_FORMAT,  # noqa: SLF001 - logging has no other way
        formatter=""
        if formatter is None or type(formatter) is logging.Formatter
        else _class_reference(formatter),
        filters=tuple(_class_reference(each) for each in handler.filters),
    )


def apply_log_config(config: LogConfig) -> None:
    """Add a handler with this configuration, unless the application has added one to the same logger.

    Leave out formatters and filters whose classes need arguments or cannot be imported.
    """
    if config.dibs_level:
        logging.getLogger("dibs").setLevel(config.dibs_level)
    if config.dibs_only:
        add_dibs_handler(_create_handler(config), config.level)
    elif config.level and not logging.root.handlers:
        logging.root.addHandler(_create_handler(config))
        logging.root.setLevel(config.level)


def _create_handler(config: LogConfig) -> logging.Handler:
    handler = ConsoleHandler()
    handler.setFormatter(_create_instance(config.formatter) or logging.Formatter(config.format))
    for name in config.filters:
        if filter_ := _create_instance(name):
            handler.addFilter(filter_)
    return handler


def _class_reference(instance: object) -> str:
    return f"{type(instance).__module__}:{type(instance).__qualname__}"


def _create_instance(name: str) -> Any:
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)()
    except (ImportError, AttributeError, TypeError, ValueError):
        return None
