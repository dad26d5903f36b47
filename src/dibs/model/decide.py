"""What becomes of a run: from what its handler did, and why it was stopped, to its settlement.

Values in, a value out: who calls has measured, drawn the luck and written the error down as text.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from dibs.model.job import Error, Job
from dibs.model.requests import Cancelled, Complete, Fail, How, Release, RetryLater, Then
from dibs.model.retry import Backoff, Cause, exhausted

#: Why a worker stopped a run: it took too long, somebody asked for it, or the worker goes.
Stop = Literal["timeout", "cancel", "release"]


class Comebacks(Protocol):
    """How often, and when, a job may come back; None is without limit."""

    @property
    def timeout(self) -> int | None: ...
    @property
    def max_retries(self) -> int | None: ...
    @property
    def max_timeouts(self) -> int | None: ...
    @property
    def max_stalls(self) -> int | None: ...
    @property
    def backoff(self) -> Backoff: ...


class Returned(Struct, frozen=True, gc=False, tag="returned"):
    """The handler came to its end; the result is encoded."""

    result: bytes
    follow_ups: tuple[Then, ...] = ()


class Raised(Struct, frozen=True, gc=False, tag="raised", kw_only=True):
    """The handler raised, was interrupted, or could not be called."""

    error: Error
    #: Fail now, whatever the limits still allow.
    permanent: bool = False
    #: When the error itself says when: at most one of them, in ms.
    delay: int | None = None
    run_at: int | None = None


class Died(Struct, frozen=True, gc=False, tag="died"):
    """The process that ran the handler is gone."""

    error: Error


Verdict = Returned | Raised | Died


def settlement(
    job: Job,
    limits: Comebacks,
    verdict: Verdict,
    *,
    stop: Stop | None = None,
    handled: bool = False,
    luck: float = 1.0,
) -> How:
    """Return how the run is settled. What finished counts, however late; `luck` in [0, 1) draws jitter."""
    if isinstance(verdict, Returned):
        return Complete(result=verdict.result, then=verdict.follow_ups)
    if stop == "release":
        return Release()
    if stop == "cancel":
        return Cancelled()
    if isinstance(verdict, Died):
        return _died(job, limits, verdict, stop, handled=handled, luck=luck)
    if verdict.permanent:
        return Fail(error=verdict.error, handled=handled)
    if stop == "timeout":
        return _timed_out(job, limits, verdict.error, handled=handled, luck=luck)
    return _went_wrong(job, limits, verdict, handled=handled, luck=luck)


def _died(job: Job, limits: Comebacks, died: Died, stop: Stop | None, *, handled: bool, luck: float) -> How:
    if stop == "timeout":
        return _timed_out(job, limits, died.error, handled=handled, luck=luck)
    return RetryLater(cause="stall", delay=pause(job, limits, "stall", luck), error=died.error)


def _timed_out(job: Job, limits: Comebacks, error: Error, *, handled: bool, luck: float) -> How:
    if exhausted(job.timeouts, limits.max_timeouts):
        return Fail(error=error, handled=handled)
    return RetryLater(cause="timeout", delay=pause(job, limits, "timeout", luck), error=error)


def _went_wrong(job: Job, limits: Comebacks, raised: Raised, *, handled: bool, luck: float) -> How:
    if exhausted(job.retries, limits.max_retries):
        return Fail(error=raised.error, handled=handled)
    if raised.run_at is not None:
        return RetryLater(run_at=raised.run_at, error=raised.error)
    delay = raised.delay if raised.delay is not None else pause(job, limits, "error", luck)
    return RetryLater(delay=delay, error=raised.error)


def pause(job: Job, limits: Comebacks, cause: Cause, luck: float = 1.0) -> int:
    """Return the ms until a job may run again that comes back for this cause once more."""
    so_far = {"error": job.retries, "timeout": job.timeouts, "stall": job.stalls}[cause]
    return limits.backoff.delay(so_far + 1, luck)


def refused_at_claim(job: Job, limits: Comebacks, *, handled: bool = False) -> Fail | None:
    """Return the end of a claimed job that stalled too often to be run again, else None.

    Here alone stalls are counted: a reap, too, brings a job back, and knows nothing of a handler's limits.
    """
    if limits.max_stalls is None or job.stalls <= limits.max_stalls:
        return None
    last = f"; last: {job.error.message}" if job.error is not None else ""
    message = f"stalled {job.stalls} times, more than max_stalls={limits.max_stalls} allows{last}"
    return Fail(error=Error(type="TooManyStalls", message=message), handled=handled)


def after_refusal(reason: str, *, handled: bool = False) -> Fail:
    """Return the end of a run whose completion the storage refused: to run it again would not help."""
    error = Error(type="CompletionRefused", message=f"the storage refused the completion: {reason}")
    return Fail(error=error, handled=handled)
