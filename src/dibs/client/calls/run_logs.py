"""The log records that a run writes to its output: the option `capture_logs` of a handler."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol

from dibs.model.error_text import to_storable_error
from dibs.model.job import Error

LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]
LEVELS: Final[dict[str, int]] = {
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARNING": logging.WARNING,
    "ERROR": logging.ERROR,
    "CRITICAL": logging.CRITICAL,
}
_FORMATTER: Final = logging.Formatter()


class LoggingRun(Protocol):
    """A run whose records are captured."""

    @property
    def log_level(self) -> int | None:
        """The lowest level of the captured records; None captures none."""

    def add_record(self, value: dict[str, str]) -> None:
        """Append a record to the output of the run, without a wait, on any thread."""


class RunLogs(logging.Handler):
    """Appends records to the output of the run that emits them. `find_run` returns the run of this context.

    The records of dibs are left out: a failed report of output would log, and so write output.
    """

    def __init__(self, find_run: Callable[[], LoggingRun | None]) -> None:
        super().__init__()
        self._find_run = find_run

    def attach(self) -> None:
        """Add this handler to the root logger. Each run calls it, because dictConfig may have removed it."""
        if self not in logging.root.handlers:
            logging.root.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        run = self._find_run()
        if run is None or run.log_level is None or record.levelno < run.log_level:
            return
        if record.name.partition(".")[0] == "dibs":
            return
        try:
            run.add_record(describe_record(record))
        except Exception:  # noqa: BLE001 - as each handler of logging: a record must not fail the program
            self.handleError(record)


def describe_record(record: logging.LogRecord) -> dict[str, str]:
    """Return a record as the value of a chunk: `time`, `level`, `logger`, `message`, and `exception` if any.

    The texts have at most 16 KiB together, as those of an error.
    """
    parts = [_FORMATTER.formatException(record.exc_info)] if record.exc_info and record.exc_info[0] else []
    if record.stack_info:
        parts.append(record.stack_info)
    error = Error(type=record.name, message=record.getMessage(), traceback="\n".join(parts))
    return _record_value(record.created, record.levelname, to_storable_error(error))


def describe_left_out(number: int, now: float) -> dict[str, str]:
    """Return a record that says that `number` records are missing before it. `now` is in s."""
    message = f"{number:,} records are left out: they came faster than the storage took them"
    return _record_value(now, "WARNING", Error(type="dibs", message=message))


def _record_value(created: float, level: str, texts: Error) -> dict[str, str]:
    time = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    value = {"time": time, "level": level, "logger": texts.type, "message": texts.message}
    return {**value, "exception": texts.traceback} if texts.traceback else value


def record_text(value: Any) -> str | None:
    """Return the value of a chunk of the kind `log` as text, without its time; None for another value."""
    match value:
        case {"level": str(level), "logger": str(logger), "message": str(message), **more}:
            exception = more.get("exception")
            return f"{level:<8} {logger}: {message}" + (f"\n{exception}" if exception else "")
        case _:
            return None
