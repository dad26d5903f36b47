"""The tree of errors. The first paragraph of a class's docstring is its default message.

DibsError
├── Refused                 a value breaks a limit or a rule; the storage is unchanged (contract 4)
├── BatchRefused            a batch has invalid items, one Refused for each; no item was sent
├── BatchClosed             the batch gets no further members; these were not enqueued
├── QueueFull               the queue has as many waiting jobs as its `max_waiting` allows
├── OutcomeUnknown          the reply was lost; the operation may or may not have happened (promise 7)
├── StorageError            the storage could not do the operation, and is unchanged
│   ├── StorageBusy         the call was not sent, or waited for a lock, until its deadline; repeat it later
│   ├── StorageUnavailable  the storage cannot be reached or opened
│   ├── StorageReadOnly     the storage permits reading only
│   ├── StorageFull         the storage is full
│   ├── StorageDamaged      the stored data is corrupt
│   └── StorageTooNew       a newer major version of dibs has written to the storage
├── ConfigurationError      the program uses dibs in a wrong way
│   ├── NoStorage           no storage URL is configured
│   ├── UnknownScheme       no installed storage has the scheme of this URL
│   ├── UnknownOption       the storage does not have this option
│   ├── UnknownTask         no task or queue with this name is declared
│   ├── DuplicateHandler    the queue has a handler already
│   └── BadHandler          this callable cannot be a handler
├── NotRunning              the object was used before it was opened or after it was closed
├── LeaseLost               the caller no longer holds the job
├── WaitTimeout             the wait ended before the job did; the job is not affected
├── JobEnded                the job ended without a result
│   ├── JobFailed           the job failed permanently
│   ├── JobCancelled        the job was cancelled
│   ├── JobDropped          the queue was at its `max_waiting`, so this job was never enqueued
│   ├── JobAbsent           an update with create=False found no live job, and changed nothing
│   └── OutcomeNotKept      the storage keeps no outcome of the enqueue
└── raised by a handler
    ├── PermanentError      fail the job without a retry
    │   └── SignalTimeout   no signal came in time; a handler may catch it
    ├── BulkFailed          fail or retry some of the jobs of a call of a bulk task
    ├── Retry               retry the job at a time that the handler chooses
    └── Snooze              run the job again at a time, without counting an attempt
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from dibs.model.duration_text import parse_seconds
from dibs.model.limits import LONGEST_TIME


class DibsError(Exception):
    """dibs raised an error; the message of the subclass names the cause."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or _default_message(type(self)))


class Refused(DibsError, ValueError):
    """A value breaks a limit or a rule, and the storage is unchanged; correct the value and repeat."""

    def __init__(self, message: str = "", *, field: str = "", index: int | None = None) -> None:
        super().__init__(message)
        self.field = field
        """The name of the invalid field, as the caller passed it; "" if the error is not about one field."""
        self.index = index
        """The index of the invalid item in its batch, from 0; None outside a batch."""


class BatchRefused(DibsError, ExceptionGroup[Refused]):
    """Some items of the batch are invalid, so no item was sent; correct these items and repeat."""

    def __new__(cls, message: str, refused: Sequence[Refused]) -> Self:
        return super().__new__(cls, message, list(refused))

    def __init__(self, message: str, refused: Sequence[Refused]) -> None:
        super().__init__(message)
        # `copy` and `pickle` make the error again by calling the class with `args`, so both parameters are
        # there.
        self.args: tuple[Any, ...] = (message, list(refused))

    def derive(self, excs: Sequence[Exception], /) -> BatchRefused:  # type: ignore[override]
        """Return a BatchRefused of `excs`, so that `except*` keeps the type when it splits the group."""
        return BatchRefused(self.message, [e for e in excs if isinstance(e, Refused)])


class BatchClosed(DibsError):
    """The batch gets no further members, so these were not enqueued; enqueue them in a new batch."""


class QueueFull(DibsError):
    """The queue has as many waiting jobs as its setting `max_waiting` allows, so it refused new ones.

        try:
            await resize.enqueue_many(resize.bind(name) for name in names)
        except QueueFull as full:
            left = [name for name, ticket in zip(names, full.tickets) if ticket.verdict == "full"]

    The refused jobs are not stored. Enqueue them again later, raise `max_waiting`, or add workers.
    """

    def __init__(self, message: str = "", *, queue: str = "", tickets: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.queue = queue
        """The name of the queue."""
        self.tickets = tickets
        """A ticket for each job of the call, in order. Its `verdict` is "full" for a refused job, and else
        says what became of the job. Empty if another part of dibs made the enqueue, as for a schedule."""

    @property
    def accepted(self) -> int:
        """The number of jobs of the call that were not refused."""
        return sum(ticket.verdict != "full" for ticket in self.tickets)


class OutcomeUnknown(DibsError):
    """The request was sent, but its reply was lost, so it may or may not have taken effect.

    Repeat it with the same id or `request_key`, or read the state of the job first.
    """


class StorageError(DibsError):
    """The storage could not do the operation, and is unchanged; repeat it later."""


class StorageBusy(StorageError):
    """The storage was busy until the deadline of the call, and nothing was written; repeat it later.

    For example an open transaction holds the job, or all connections are in use. A call that was sent, and
    that the storage did not answer, raises OutcomeUnknown instead.
    """

    def __init__(self, message: str = "", *, waits_for: str = "") -> None:
        super().__init__(message)
        self.waits_for = waits_for
        """The reason of the delay, as in "a connection: all 10 are in use"; "" if it is not known."""


class StorageUnavailable(StorageError):
    """The storage cannot be reached; check its URL and its server, and repeat."""

    def __init__(self, message: str = "", *, passes: bool = False) -> None:
        super().__init__(message)
        self.passes = passes
        """True if a server does not answer or is starting; False if somebody must correct something."""


class StorageReadOnly(StorageError):
    """The storage permits reading only; grant write access, or connect to the primary server."""


class StorageFull(StorageError):
    """The storage is full; free space and repeat."""


class StorageDamaged(StorageError):
    """The stored data is corrupt; restore it from a backup."""


class StorageTooNew(StorageError):
    """A newer major version of dibs has written to the storage; upgrade dibs here."""


class ConfigurationError(DibsError):
    """The program uses dibs in a wrong way; correct the program or its configuration."""


class NoStorage(ConfigurationError):
    """No storage URL is configured; pass one, set DIBS_URL, or url under [tool.dibs] in pyproject.toml."""


class UnknownScheme(ConfigurationError):
    """No installed storage has the scheme of this URL; correct the URL, or install its package."""


class UnknownOption(ConfigurationError):
    """The storage does not have this option; remove it, or correct its name."""


class UnknownTask(ConfigurationError):
    """No task or queue with this name is declared; import its module, or correct the name."""


class DuplicateHandler(ConfigurationError):
    """The queue has a handler already, and a queue has only one; use another queue."""


class BadHandler(ConfigurationError):
    """This callable cannot be a handler; use a function at the top level of a module."""


class NotRunning(DibsError):
    """The object is not open; use it inside its `async with` block."""


class LeaseLost(DibsError):
    """The caller no longer holds the job, so the storage refused the write; another worker may run it."""


class WaitTimeout(DibsError, TimeoutError):
    """The wait ended before the job did; the job is not affected, so wait again or cancel it."""


class JobEnded(DibsError):
    """The job ended without a result."""

    def __init__(self, message: str = "", *, queue: str = "", id: str = "") -> None:
        super().__init__(message or f"{queue}/{id}: {_default_message(type(self))}")
        self.queue = queue
        self.id = id


class JobFailed(JobEnded):
    """The job failed permanently; its `error` has the exception of the last attempt."""

    def __init__(self, message: str = "", *, queue: str = "", id: str = "", error: Any = None) -> None:
        super().__init__(message, queue=queue, id=id)
        self.error = error
        """The stored `dibs.Error`, with type name, message, traceback and cause; None if it was not kept."""


class JobCancelled(JobEnded):
    """The job was cancelled, or a newer enqueue of its id replaced its run. If none did, enqueue it again."""

    def __init__(self, message: str = "", *, queue: str = "", id: str = "", error: Any = None) -> None:
        super().__init__(message, queue=queue, id=id)
        self.error = error
        """The reason as a stored `dibs.Error`, for example a passed `start_by`; None without a reason."""


class JobDropped(JobEnded):
    """The queue had as many waiting jobs as `max_waiting` allows, so this job was not enqueued; repeat it."""


class JobAbsent(JobEnded):
    """The id had no live job, so Update(create=False) changed nothing; enqueue the job with its data."""


class OutcomeNotKept(JobEnded):
    """The storage has no outcome of the enqueue: it expired, or was removed or replaced.

    Raise the retention to read it later. A storage that lost the job, as a failover or a restored backup may,
    gives the same answer, because it does not know the enqueue.
    """


class PermanentError(DibsError):
    """The handler asked to fail the job without a retry.

    Raise it in a handler when another attempt cannot succeed, for example because the arguments are wrong.
    The job fails at once, even if attempts are left.
    """


class BulkFailed(DibsError):
    """Some jobs of a call of a bulk task failed.

        raise BulkFailed({2: ValueError("no such address")}, results)

    Raise it in the function of a bulk task. `errors` has the error of each job that failed, by its index in
    the list, from 0; each fails or is retried as if its own run had raised the error. The other jobs complete
    with their `results`, a list with one for each job of the call, or with None.
    """

    def __init__(self, errors: Mapping[int, BaseException], results: Sequence[object] | None = None) -> None:
        super().__init__(f"{len(errors)} jobs of the call failed")
        self.errors: dict[int, BaseException] = dict(errors)
        self.results: Sequence[object] | None = results


class Retry(DibsError):
    """The handler asked to retry the job.

    Raise it in a handler. `delay` is the pause before the next attempt: seconds, text such as "5m", or a
    timedelta. `at` is the time of the next attempt, a datetime with a time zone. Without both, the backoff of
    the handler applies.
    """

    def __init__(
        self, message: str = "", *, delay: float | str | timedelta | None = None, at: datetime | None = None
    ) -> None:
        if delay is not None and at is not None:
            raise Refused("delay and at of Retry are both set; pass only one", field="at")
        if at is not None and at.tzinfo is None:
            raise Refused(
                f"at of Retry is {at}, which has no time zone; pass one, as in datetime(..., tzinfo=UTC)",
                field="at",
            )
        super().__init__(message)
        self.delay: float | timedelta | None = _parse_delay(delay) if isinstance(delay, str) else delay
        self.at = at


class SignalTimeout(PermanentError):
    """No signal came before the timeout of `current_job().wait_for(...)`.

    A handler may catch it and go on; each later run gets it at the same place. Uncaught, it fails the job
    without a retry.
    """


class Snooze(DibsError):
    """The handler asked to run the job again later, without counting an attempt or a retry.

    Raise it in a handler that cannot work yet, for example because another system asked it to wait. Exactly
    one of `delay` and `until` is set. `delay` is the pause before the next run: seconds, text such as "5m",
    or a timedelta. `until` is the time of the next run, a datetime with a time zone; a time in the past
    makes the job due at once.
    """

    def __init__(
        self,
        message: str = "",
        *,
        delay: float | str | timedelta | None = None,
        until: datetime | None = None,
    ) -> None:
        if (delay is None) == (until is None):
            state = "both set" if until is not None else "both missing"
            raise Refused(f"delay and until of Snooze are {state}; pass exactly one of them", field="delay")
        super().__init__(message)
        self.delay: float | None = None if delay is None else _snooze_seconds(delay)
        """Seconds until the next run; None if `until` is set."""
        self.until: datetime | None = _snooze_time(until)
        """Time of the next run; None if `delay` is set."""


def _snooze_seconds(delay: object) -> float:
    if isinstance(delay, str):
        delay = _parse_delay(delay)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise Refused(
            f'delay of Snooze is {delay!r:.60}; pass seconds as a number, text such as "5m", or a timedelta',
            field="delay",
        )
    if not 0 <= seconds <= LONGEST_TIME // 1000:
        raise Refused(
            f"delay of Snooze is {_short(seconds)} s; it must be 0 to {LONGEST_TIME // 1000} (100,000 days)",
            field="delay",
        )
    return seconds


def _short(number: float) -> str:
    # Python raises ValueError when it formats an integer of thousands of digits.
    return f"{number}" if abs(number) < LONGEST_TIME or number != number else "far too many"  # noqa: PLR0124 - NaN


def _snooze_time(until: object) -> datetime | None:
    if until is None:
        return None
    if not isinstance(until, datetime):
        raise Refused(
            f"until of Snooze is a {type(until).__name__}; pass a datetime with a time zone", field="until"
        )
    if until.tzinfo is None or until.utcoffset() is None:
        raise Refused(
            f"until of Snooze is {until}, which has no time zone; pass one, as in datetime(..., tzinfo=UTC)",
            field="until",
        )
    return until


def _parse_delay(text: str) -> float:
    try:
        return parse_seconds("delay", text)
    except ValueError as error:
        raise Refused(str(error), field="delay") from None


def _default_message(kind: type) -> str:
    return " ".join((kind.__doc__ or kind.__name__).strip().partition("\n\n")[0].split())
