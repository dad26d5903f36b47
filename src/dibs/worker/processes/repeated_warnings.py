"""The worker logs a warning that its loops repeat once a minute, not with each turn of the loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

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
