"""The console lines of dibs in each process of a worker, beside the logging of the application.

Standard output and error that cannot be written fail no run, and a warning that the loops of a worker
repeat is logged once a minute, not with each turn of the loop.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import IO, Any, Final

from msgspec import Struct

#: Seconds in which the same warning is logged once.
QUIET: Final = 60.0
#: Most texts that are remembered.
MAX_TEXTS: Final = 200


class _FirstOfEach(logging.Filter):
    """Lets each text of level WARNING or higher pass once in QUIET seconds."""

    def __init__(self) -> None:
        super().__init__()
        #: The monotonic time at which each text was last logged, oldest first.
        self._logged: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text, now = record.getMessage(), time.monotonic()
        if now - self._logged.get(text, -QUIET) < QUIET:
            return False
        self._logged.pop(text, None)
        self._logged[text] = now
        if len(self._logged) > MAX_TEXTS:
            del self._logged[next(iter(self._logged))]
        return True


@contextmanager
def repeated_warnings_once_a_minute() -> Iterator[None]:
    """Drop repeated warnings of the worker for a `with` block."""
    logger, only_first = logging.getLogger("dibs.worker"), _FirstOfEach()
    logger.addFilter(only_first)
    try:
        yield
    finally:
        logger.removeFilter(only_first)


#: The streams that were replaced. If nothing referred to them, they could close the file descriptor.
_replaced: Final[list[io.TextIOWrapper]] = []


class LossyFile(io.FileIO):
    """A file whose writes never fail. It drops what cannot be written.

    The reader of a pipe may end, as in `dibs worker | head`, and the disk behind a log may be full.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self._discard()
        return memoryview(data).nbytes

    def _discard(self) -> None:
        """Replace the file by /dev/null, so that programs which handlers start can write, too."""
        with suppress(OSError), open(os.devnull, "wb") as null:  # noqa: PTH123 - a device, for its descriptor
            os.dup2(null.fileno(), self.fileno())


def accept_lost_output() -> None:
    """Make writes to sys.stdout and sys.stderr never fail, unless the program has replaced them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            new = _make_lossy(stream)
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
            _replaced.append(stream)


def _make_lossy(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with suppress(OSError):
        stream.flush()
    file = LossyFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        # With PYTHONUNBUFFERED the text goes to the file itself.
        file if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


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
    stream = getattr(handler, "stream", None)
    streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)  # None after `>&-`
    return (stream is not None and stream in streams) or hasattr(handler, "console")


def enable_dibs_loggers() -> None:
    """Enable the loggers of dibs again, after dictConfig with its default.

    The default, "disable_existing_loggers": True, disables each logger that exists and is not named. A lost
    lease would go unseen.
    """
    for name, logger in logging.getLogger().manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and name.split(".")[0] == "dibs":
            logger.disabled = False


class HandlerConfig(Struct, frozen=True, kw_only=True):
    """A handler as data. A class is given as "module:class"; the child creates the instance."""

    #: The format string for logging.Formatter.
    format: str = logging.BASIC_FORMAT
    #: The class of the formatter; "" for logging.Formatter.
    formatter: str = ""
    #: The classes of the filters.
    filters: tuple[str, ...] = ()


class LogConfig(Struct, frozen=True, kw_only=True):
    """The levels and the first handlers of the root logger and of the logger "dibs"."""

    #: The level of the root logger; 0 if the process has configured no logging.
    level: int = 0
    #: None if the root logger has no handler.
    root: HandlerConfig | None = None
    #: None if the logger "dibs" has no handler of its own.
    dibs: HandlerConfig | None = None
    #: The level of the logger "dibs"; 0 if it has none of its own.
    dibs_level: int = 0


def current_log_config() -> LogConfig:
    """Return the configuration of this process."""
    dibs = logging.getLogger("dibs")
    return LogConfig(
        level=logging.root.getEffectiveLevel() if logging.root.handlers or dibs.handlers else 0,
        root=_describe_handler(logging.root),
        dibs=_describe_handler(dibs),
        dibs_level=dibs.level,
    )


def _describe_handler(logger: logging.Logger) -> HandlerConfig | None:
    if not logger.handlers:
        return None
    handler = logger.handlers[0]
    formatter = handler.formatter
    return HandlerConfig(
        format=(formatter and formatter._fmt) or logging.BASIC_FORMAT,  # noqa: SLF001 - logging has no other way
        formatter=""
        if formatter is None or type(formatter) is logging.Formatter
        else _class_reference(formatter),
        filters=tuple(_class_reference(each) for each in handler.filters),
    )


def apply_log_config(config: LogConfig) -> None:
    """Add handlers with this configuration to the loggers to which the application has added none.

    Leave out the handler of "dibs" if the root logger writes to the console: each line would appear twice.
    Leave out formatters and filters whose classes need arguments or cannot be imported.
    """
    if config.dibs_level:
        logging.getLogger("dibs").setLevel(config.dibs_level)
    if config.root is not None and not logging.root.handlers:
        logging.root.addHandler(_create_handler(config.root))
        logging.root.setLevel(config.level)
    if config.dibs is not None and not any(map(_writes_to_console, logging.root.handlers)):
        add_dibs_handler(_create_handler(config.dibs), config.level)


def _create_handler(config: HandlerConfig) -> logging.Handler:
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
