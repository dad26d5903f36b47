"""Log records that say which run they belong to, and a format that keeps it: one line of JSON each.

Nothing is set up around a run. The job is looked for when a record has come as far as a handler of yours,
so a message that nobody listens to costs what it costs without dibs.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import IO, Any, Final

import msgspec

from dibs.client.calls.current_job import CURRENT

#: What a record gets that was made during a run.
FIELDS: Final = ("queue", "id", "attempt", "fence")
#: What every record has, so that all else was given with extra=.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JobContextFilter(logging.Filter):
    """Gives records the queue, id, attempt and fence of the run they were made in; it drops none.

    Put it on a handler: `handler.addFilter(JobContextFilter())`. Then a format may say %(queue)s, outside of runs "".
    """

    def filter(self, record: logging.LogRecord) -> bool:
        job = CURRENT.get(None)
        for field in FIELDS:
            if not hasattr(record, field):
                setattr(record, field, "" if job is None else getattr(job, field))
        return True


class JsonFormatter(logging.Formatter):
    """Writes a record as one line of JSON: time, level, logger, message, then whatever else it has."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL and value != ""}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


def setup_json_logging(level: int | str = logging.INFO, stream: IO[str] | None = None) -> logging.Handler:
    """Let all that is logged in this process go to a stream, else to stderr, as lines of JSON.

    Say it where the app is made: worker processes import that module, too. Said twice of one stream, as
    by `dibs worker` and the app, it writes each line once, and the latest level counts.
    """
    where = sys.stderr if stream is None else stream
    root = logging.getLogger()
    root.setLevel(level)
    for known in root.handlers:
        if isinstance(known.formatter, JsonFormatter) and getattr(known, "stream", None) is where:
            return known
    handler = logging.StreamHandler(where)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(JobContextFilter())
    root.addHandler(handler)
    return handler
