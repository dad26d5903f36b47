"""The one tree of errors. A docstring is the default message; every error names what to do next.

DibsError
├── Refused                 nothing happened: a value breaks a limit or a rule (contract 4)
├── BatchRefused            the same for a batch: one Refused for each bad item, nothing was sent
├── OutcomeUnknown          it was sent and the reply was lost: it may have happened (promise 7)
├── StorageError            the storage could not do it; nothing happened
│   ├── StorageUnavailable  cannot be reached or opened
│   ├── StorageReadOnly     may be read, not written
│   ├── StorageFull         no room left
│   ├── StorageDamaged      what is stored cannot be read
│   └── StorageTooNew       written by a newer major version
├── ConfigurationError      the program is wired wrongly
│   ├── NoStorage           no URL was given anywhere
│   ├── UnknownScheme       no storage is known for this URL
│   ├── UnknownOption       the storage has no such option
│   ├── UnknownTask         no task or queue of this name is registered
│   ├── DuplicateHandler    the queue has a handler already
│   └── BadHandler          this callable can't be a handler
├── NotRunning              used before it was opened or after it was closed
├── LeaseLost               the job is no longer this holder's
├── WaitTimeout             waited long enough; the job itself is untouched
├── JobEnded                the job ended without a result to give
│   ├── JobFailed           it failed for good
│   ├── JobCancelled        it was cancelled
│   └── OutcomeNotKept      it ended and its outcome is no longer kept
└── what a handler raises
    ├── PermanentError      fail now, do not retry
    └── Retry               run again at a time of the handler's choosing
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Self


class DibsError(Exception):
    """Something in dibs went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or _first_line(type(self)))


class Refused(DibsError, ValueError):
    """Refused, and nothing was written."""

    def __init__(self, message: str = "", *, field: str = "", index: int | None = None) -> None:
        super().__init__(message)
        #: The field that is at fault, as the caller wrote it; empty when it is not one field.
        self.field = field
        #: The place in the batch, from 0; None outside batches.
        self.index = index


class BatchRefused(DibsError, ExceptionGroup[Refused]):
    """Some items of the batch are refused, and none was sent."""

    def __new__(cls, message: str, refused: Sequence[Refused]) -> Self:
        return super().__new__(cls, message, list(refused))

    def __init__(self, message: str, refused: Sequence[Refused]) -> None:
        super().__init__(message)
        # What copy and pickle make it anew from.
        self.args = (message, list(refused))

    def derive(self, excs: Sequence[Exception], /) -> BatchRefused:  # type: ignore[override]
        """Keep the type when `except*` splits the group."""
        return BatchRefused(self.message, [e for e in excs if isinstance(e, Refused)])


class OutcomeUnknown(DibsError):
    """The request was sent and its reply was lost: it may or may not have happened."""


class StorageError(DibsError):
    """The storage could not do it, and nothing happened."""


class StorageUnavailable(StorageError):
    """The storage cannot be reached."""


class StorageReadOnly(StorageError):
    """The storage may be read, but not written."""


class StorageFull(StorageError):
    """The storage has no room left; make room and repeat."""


class StorageDamaged(StorageError):
    """What the storage holds cannot be read."""


class StorageTooNew(StorageError):
    """The storage was written by a newer major version of dibs; upgrade this one."""


class ConfigurationError(DibsError):
    """The program is wired wrongly."""


class NoStorage(ConfigurationError):
    """No storage URL: pass one, set DIBS_URL, or put url under [tool.dibs] in pyproject.toml."""


class UnknownScheme(ConfigurationError):
    """No storage is known for this URL."""


class UnknownOption(ConfigurationError):
    """The storage has no such option."""


class UnknownTask(ConfigurationError):
    """No task or queue of this name is registered."""


class DuplicateHandler(ConfigurationError):
    """The queue has a handler already; a queue has exactly one."""


class BadHandler(ConfigurationError):
    """This callable cannot be a handler."""


class NotRunning(DibsError):
    """Used before it was opened, or after it was closed."""


class LeaseLost(DibsError):
    """The job is no longer held here: its lease ended and the storage refused the write."""


class WaitTimeout(DibsError, TimeoutError):
    """Waited long enough; the job itself is untouched."""


class JobEnded(DibsError):
    """The job ended without a result to give."""

    def __init__(self, message: str = "", *, queue: str = "", id: str = "") -> None:
        super().__init__(message or f"{queue}/{id}: {_first_line(type(self))}")
        self.queue = queue
        self.id = id


class JobFailed(JobEnded):
    """The job failed for good."""

    def __init__(self, message: str = "", *, queue: str = "", id: str = "", error: Any = None) -> None:
        super().__init__(message, queue=queue, id=id)
        #: What the storage kept of the error: type name, message, traceback, cause (model.Error).
        self.error = error


class JobCancelled(JobEnded):
    """The job was cancelled."""


class OutcomeNotKept(JobEnded):
    """The job ended, and its outcome is no longer kept."""


class PermanentError(DibsError):
    """Raised by a handler: fail now, do not retry."""


class Retry(DibsError):
    """Raised by a handler: run again, after `delay` seconds or at a time with a zone."""

    def __init__(
        self, message: str = "", *, delay: float | timedelta | None = None, at: datetime | None = None
    ) -> None:
        if delay is not None and at is not None:
            raise Refused("Retry takes delay or at, not both", field="at")
        if at is not None and at.tzinfo is None:
            raise Refused("Retry(at=...) needs a datetime with a time zone", field="at")
        super().__init__(message)
        self.delay = delay
        self.at = at


def _first_line(kind: type) -> str:
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]
