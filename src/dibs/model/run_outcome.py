"""The rules that workers use at the end of a run: complete, fail, retry later, release or cancel.

The worker passes a verdict (how the handler ended) and, if it stopped the run itself, the reason. The result
is the action of the settlement that the worker sends to the storage.
"""

from __future__ import annotations

import re
from typing import Final, Literal, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dibs.model.job import Error, Job
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    FollowUp,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
)
from dibs.model.retry import Backoff, RetryCause, is_exhausted

#: The type of the error of a job whose payload does not fit the handler.
MISMATCH: Final = "PayloadMismatch"
#: Most retries of such a job in a row, and the time until each of them in ms. Together they take ten minutes,
#: in which a deployment should reach all workers.
MAX_MISMATCHES: Final = 10
MISMATCH_PAUSE: Final = 60_000
_MISMATCH_NUMBER: Final = re.compile(r"retry (\d+) of ")

#: The reason why a worker stopped a run: its timeout, a requested cancellation, or the worker's shutdown.
StopReason = Literal["timeout", "cancel", "release"]


class RetryLimits(Protocol):
    """The timeout in ms, the retry limits and the backoff of a handler. None is no limit."""

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
    """The verdict on a handler that returned a value."""

    #: The encoded return value.
    result: bytes
    #: The jobs to enqueue in the same step as the end.
    follow_ups: tuple[FollowUp, ...] = ()


class Raised(Struct, frozen=True, gc=False, tag="raised", kw_only=True):
    """The verdict on a handler that raised, was interrupted, or could not be called.

    At most one of `delay` and `run_at` is set; an error that sets one replaces the backoff of the handler.
    """

    error: Error
    #: True to fail now, even if more retries are allowed.
    permanent: bool = False
    #: True if the handler does not retry errors of this class. A timeout is retried all the same.
    unlisted: bool = False
    #: True if the payload does not fit the handler of this worker, which was not called.
    mismatch: bool = False
    #: The time until the retry, in ms; None if the error does not set it.
    delay: int | None = None
    #: The earliest time of the retry, in ms since the epoch; None if the error does not set it.
    run_at: int | None = None
    #: The jobs to enqueue in the same step if the run ends the job as failed.
    follow_ups: tuple[FollowUp, ...] = ()


class Died(Struct, frozen=True, gc=False, tag="died"):
    """The verdict on a handler whose process died."""

    error: Error


class Snoozed(Struct, frozen=True, gc=False, tag="snoozed"):
    """The verdict on a handler that raised Snooze or waits for a signal: the job waits, without a count.

    Exactly one of `delay` and `run_at` is set.
    """

    #: The time until the next run, in ms.
    delay: int | None = None
    #: The earliest time of the next run, in ms since the epoch.
    run_at: int | None = None
    #: True if the job waits for a signal.
    parked: bool = False


class NotEntered(Struct, frozen=True, gc=False, tag="not_entered"):
    """The verdict on a run whose process died before the handler began: the run is released."""


class HandedOff(Struct, frozen=True, gc=False, tag="handed_off"):
    """The verdict on a handler that returned after it asked to hand its run off."""


Verdict = Returned | Raised | Snoozed | HandedOff | Died | NotEntered


def settle_action(
    job: Job,
    limits: RetryLimits,
    verdict: Verdict,
    *,
    stop: StopReason | None = None,
    jitter_factor: float = 1.0,
) -> SettleAction:
    """Return the action with which the worker settles a run.

    A handler that returned completes the run, or hands it off, even if the worker had tried to stop it.
    `jitter_factor` is a random number in [0, 1) for backoffs with jitter.
    """
    if isinstance(verdict, Returned):
        return complete(verdict)
    if isinstance(verdict, HandedOff):
        return HandOff()
    if stop == "release":
        return Release()
    if stop == "cancel":
        return Cancelled()
    if isinstance(verdict, NotEntered):
        return Release()
    if isinstance(verdict, Snoozed):
        return Release(delay=verdict.delay, run_at=verdict.run_at, parked=verdict.parked)
    if isinstance(verdict, Died):
        return _after_death(job, limits, verdict, stop, jitter_factor=jitter_factor)
    action = _after_raise(job, limits, verdict, stop, jitter_factor)
    if verdict.follow_ups and isinstance(action, Fail):
        return replace(action, then=verdict.follow_ups)
    return action


def complete(verdict: Returned) -> Complete:
    """Return the action that settles the run of a handler that returned."""
    return Complete(result=verdict.result, then=verdict.follow_ups)


def _after_raise(
    job: Job, limits: RetryLimits, raised: Raised, stop: StopReason | None, jitter_factor: float
) -> SettleAction:
    if raised.permanent:
        # A job that stalled too often has an error of its own kind already.
        kind = "permanent" if raised.error.kind == "error" else raised.error.kind
        return Fail(error=replace(raised.error, kind=kind))
    if stop == "timeout":
        return _after_timeout(job, limits, raised.error, jitter_factor=jitter_factor)
    if raised.mismatch:
        return _after_mismatch(job, raised.error)
    return _after_error(job, limits, raised, jitter_factor=jitter_factor)


def _after_death(
    job: Job, limits: RetryLimits, died: Died, stop: StopReason | None, *, jitter_factor: float
) -> SettleAction:
    if stop == "timeout":
        return _after_timeout(job, limits, died.error, jitter_factor=jitter_factor)
    error = replace(died.error, kind="stall")
    # The next claim of a job that has stalled too often fails it: there is no run to wait for.
    is_last = is_exhausted(job.stalls, limits.max_stalls)
    delay = 0 if is_last else retry_delay(job, limits, "stall", jitter_factor)
    return RetryLater(cause="stall", delay=delay, error=error)


def _after_timeout(job: Job, limits: RetryLimits, error: Error, *, jitter_factor: float) -> SettleAction:
    error = replace(error, kind="timeout")
    if is_exhausted(job.timeouts, limits.max_timeouts):
        return Fail(error=error)
    return RetryLater(cause="timeout", delay=retry_delay(job, limits, "timeout", jitter_factor), error=error)


def _after_error(job: Job, limits: RetryLimits, raised: Raised, *, jitter_factor: float) -> SettleAction:
    if raised.unlisted:
        return Fail(error=replace(raised.error, kind="permanent"))
    if is_exhausted(job.retries, limits.max_retries):
        return Fail(error=raised.error)
    if raised.run_at is not None:
        return RetryLater(run_at=raised.run_at, error=raised.error)
    delay = raised.delay if raised.delay is not None else retry_delay(job, limits, "error", jitter_factor)
    return RetryLater(delay=delay, error=raised.error)


def _after_mismatch(job: Job, error: Error) -> SettleAction:
    """Retry a job with a payload for another version of the handler, whatever its limits say.

    The error names the number of the retry, as the job has no count for it.
    """
    number = _count_mismatches(job) + 1
    if number > MAX_MISMATCHES:
        seconds = MISMATCH_PAUSE // 1000
        message = f"{error.message} (after {MAX_MISMATCHES} retries, one every {seconds} s)"
        return Fail(error=replace(error, message=message))
    message = f"retry {number} of {MAX_MISMATCHES}: {error.message}"
    return RetryLater(delay=MISMATCH_PAUSE, error=replace(error, message=message))


def _count_mismatches(job: Job) -> int:
    """Return how many times the job was retried since its payload last fitted a handler."""
    if job.error is None or job.error.type != MISMATCH:
        return 0
    number = _MISMATCH_NUMBER.match(job.error.message)
    # An update that resets the counts of the job keeps its error.
    return min(int(number[1]), job.retries) if number else 0


def retry_delay(job: Job, limits: RetryLimits, cause: RetryCause, jitter_factor: float = 1.0) -> int:
    """Return the backoff in ms before the next retry of `job`. Each cause has a count of its own."""
    so_far = {"error": job.retries, "timeout": job.timeouts, "stall": job.stalls}[cause]
    return limits.backoff.delay(so_far + 1, jitter_factor)


def fail_if_stalled_too_often(job: Job, limits: RetryLimits) -> Fail | None:
    """Return the action that fails a claimed job with more stalls than `max_stalls`; None if it may run.

    A worker calls this function after each claim. The storage cannot check the limit in `reap`, where it
    counts stalls, because it does not know the limits of handlers.
    """
    if limits.max_stalls is None or job.stalls <= limits.max_stalls:
        return None
    last = "" if job.error is None else f"; last: {job.error.message or job.error.type}"
    times = "once" if job.stalls == 1 else f"{job.stalls} times"
    message = f"stalled {times}, more than max_stalls={limits.max_stalls} allows{last}"
    error = Error(type="TooManyStalls", message=message, kind="stall")
    return Fail(error=error)


def cancel_if_too_late(job: Job) -> Cancelled | None:
    """Return the action that cancels a job that was claimed at its `start_by` or later; None if it may run.

    A worker calls this function after each claim. The time of the claim is that of the storage.
    """
    start_by = None if job.data.overrides is None else job.data.overrides.start_by
    if job.run is None or not isinstance(start_by, int) or job.run.claimed_at < start_by:
        return None
    late = job.run.claimed_at - start_by
    message = f"claimed {late} ms after the deadline start_by={start_by} (ms since the epoch)"
    return Cancelled(error=Error(type="StartDeadlinePassed", message=message, kind="permanent"))


def fail_after_refusal(reason: str) -> Fail:
    """Return the action that fails a run whose completion the storage refused, such as a result over 1 MiB.

    A retry of the completion would be refused again.
    """
    message = f"the storage refused the end of the run: {reason}"
    error = Error(type="CompletionRefused", message=message, kind="permanent")
    return Fail(error=error)
