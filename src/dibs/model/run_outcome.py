"""What becomes of a run: from what its handler did, and why it was stopped, to its settlement.

Values in, a value out: who calls has measured, drawn the luck and written the error down as text.
"""

from __future__ import annotations

from typing import Literal, Protocol

from msgspec import Struct

from dibs.model.job import Error, Job
from dibs.model.requests import Cancelled, Complete, Fail, FollowUp, Release, RetryLater, SettleAction
from dibs.model.retry import Backoff, RetryCause, is_exhausted

#: Why a worker stopped a run: it took too long, somebody asked for it, or the worker goes.
StopReason = Literal["timeout", "cancel", "release"]


class RetryLimits(Protocol):
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
    follow_ups: tuple[FollowUp, ...] = ()


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


def settle_action(
    job: Job,
    limits: RetryLimits,
    verdict: Verdict,
    *,
    stop: StopReason | None = None,
    handled: bool = False,
    luck: float = 1.0,
) -> SettleAction:
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


def _died(job: Job, limits: RetryLimits, died: Died, stop: StopReason | None, *, handled: bool, luck: float) -> SettleAction:
    if stop == "timeout":
        return _timed_out(job, limits, died.error, handled=handled, luck=luck)
    return RetryLater(cause="stall", delay=retry_delay(job, limits, "stall", luck), error=died.error)


def _timed_out(job: Job, limits: RetryLimits, error: Error, *, handled: bool, luck: float) -> SettleAction:
    if is_exhausted(job.timeouts, limits.max_timeouts):
        return Fail(error=error, handled=handled)
    return RetryLater(cause="timeout", delay=retry_delay(job, limits, "timeout", luck), error=error)


def _went_wrong(job: Job, limits: RetryLimits, raised: Raised, *, handled: bool, luck: float) -> SettleAction:
    if is_exhausted(job.retries, limits.max_retries):
        return Fail(error=raised.error, handled=handled)
    if raised.run_at is not None:
        return RetryLater(run_at=raised.run_at, error=raised.error)
    delay = raised.delay if raised.delay is not None else retry_delay(job, limits, "error", luck)
    return RetryLater(delay=delay, error=raised.error)


def retry_delay(job: Job, limits: RetryLimits, cause: RetryCause, luck: float = 1.0) -> int:
    """Return the ms until a job may run again that comes back for this cause once more."""
    so_far = {"error": job.retries, "timeout": job.timeouts, "stall": job.stalls}[cause]
    return limits.backoff.delay(so_far + 1, luck)


def fail_if_stalled_too_often(job: Job, limits: RetryLimits, *, handled: bool = False) -> Fail | None:
    """Return the end of a claimed job that stalled too often to be run again, else None.

    Here alone stalls are counted: a reap, too, brings a job back, and knows nothing of a handler's limits.
    """
    if limits.max_stalls is None or job.stalls <= limits.max_stalls:
        return None
    last = f"; last: {job.error.message}" if job.error is not None else ""
    message = f"stalled {job.stalls} times, more than max_stalls={limits.max_stalls} allows{last}"
    return Fail(error=Error(type="TooManyStalls", message=message), handled=handled)


def fail_after_refusal(reason: str, *, handled: bool = False) -> Fail:
    """Return the end of a run whose completion the storage refused: to run it again would not help."""
    error = Error(type="CompletionRefused", message=f"the storage refused the completion: {reason}")
    return Fail(error=error, handled=handled)
