"""Log records with the queue, id, attempt and fence of their run, and a formatter that writes JSON lines.

The fence of a run is the number of its claim: the second run of a job has a higher fence than the first.
The filter looks up the current job only when a record reaches a logging handler, so the worker does no
extra work per run.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any, Final

import msgspec

from dibs.client.calls.current_job import CURRENT_JOB

#: The attributes that the filter adds to a record.
JOB_FIELDS: Final = ("queue", "id", "attempt", "fence")
#: The attributes that `logging` gives every record. All others come from `extra=` or from a filter.
_STANDARD_ATTRIBUTES: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JobContextFilter(logging.Filter):
    """A filter that adds the queue, id, attempt and fence of the current run to each record.

    Add it to a logging handler: `handler.addFilter(JobContextFilter())`. Then its format may contain
    %(queue)s, %(id)s, %(attempt)s and %(fence)s, which are "" outside a run. The filter drops no record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = CURRENT_JOB.get(None)
        for field in JOB_FIELDS:
            if not hasattr(record, field):
                setattr(record, field, "" if job is None else getattr(job, field))
        return True


class JsonFormatter(logging.Formatter):
    """A formatter that writes a record as one line of JSON: time, level, logger, message, other attributes.

    The other attributes come from `extra=` and from filters. The attribute `error` has the traceback of a
    logged exception.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {
            name: value
            for name, value in vars(record).items()
            if name not in _STANDARD_ATTRIBUTES and value != ""
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TerminalFormatter(logging.Formatter):
    """A formatter for a terminal: "dibs: " and the message, with control characters as escapes.

    The id of a job, or the text of an error, may hold sequences that clear the screen or set its title.
    """

    def __init__(self) -> None:
        super().__init__("dibs: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return "".join(
            char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode("ascii")
            for char in super().format(record)
        )


def setup_json_logging(level: int | str = logging.INFO, stream: IO[str] | None = None) -> logging.Handler:
    """Log all records of this process as JSON lines to `stream`, or to stderr; return the logging handler.

    Call it in the module that creates the app, because worker processes import this module too. A second
    call for the same stream, as by `dibs worker` and the app, changes the level and adds no second handler.
    """
    target = sys.stderr if stream is None else stream
    root = logging.getLogger()
    root.setLevel(level)
    for existing in root.handlers:
        if isinstance(existing.formatter, JsonFormatter) and getattr(existing, "stream", None) is target:
            return existing
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(JobContextFilter())
    root.addHandler(handler)
    return handler
