"""The settlement of a run, for each verdict and each reason of a stop."""

from __future__ import annotations

import pytest
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dibs.client.calls.handler import HandlerLimits
from dibs.model.job import ActiveRun, Error, Job, JobData, NewJob
from dibs.model.overrides import Overrides
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
from dibs.model.retry import Exponential, Fixed
from dibs.model.run_outcome import (
    Died,
    HandedOff,
    NotEntered,
    Raised,
    Returned,
    Snoozed,
    StopReason,
    Verdict,
    cancel_if_too_late,
    fail_after_refusal,
    fail_if_stalled_too_often,
    retry_delay,
    settle_action,
)

ERROR = Error(type="ValueError", message="no")
LIMITS = HandlerLimits(max_retries=2, max_timeouts=1, max_stalls=3, backoff=Exponential(2, 300))
PERMANENT = replace(ERROR, kind="permanent")
TIMED_OUT = replace(ERROR, kind="timeout")
STALLED = replace(ERROR, kind="stall")
FOLLOW_UPS = (FollowUp(queue="b", job=NewJob(id="x")),)


def job(*, retries: int = 0, timeouts: int = 0, stalls: int = 0, error: Error | None = None) -> Job:
    return Job(
        id="a",
        data=JobData(),
        run_at=0,
        enqueued_at=0,
        seq=1,
        first=1,
        revision=1,
        attempts=1,
        retries=retries,
        timeouts=timeouts,
        stalls=stalls,
        error=error,
        run=ActiveRun(fence=1, lease="l", holder="h", claimed_at=0),
    )


def raised(**more: int | bool) -> Raised:
    return Raised(error=ERROR, **more)  # type: ignore[arg-type]


def test_what_returned_is_complete_with_its_follow_ups() -> None:
    then = (FollowUp(queue="b", job=NewJob(id="x")),)

    assert settle_action(job(), LIMITS, Returned(b"1", then)) == Complete(result=b"1", then=then)


@pytest.mark.parametrize("stop", ["timeout", "cancel", "release"])
def test_what_returned_counts_however_late(stop: StopReason) -> None:
    assert settle_action(job(), LIMITS, Returned(b"1"), stop=stop) == Complete(result=b"1")


CASES: dict[str, tuple[SettleAction, Job, Verdict, StopReason | None]] = {
    "an error is retried after the backoff": (
        RetryLater(delay=2000, error=ERROR), job(), raised(), None
    ),
    "each retry waits twice as long": (
        RetryLater(delay=4000, error=ERROR), job(retries=1), raised(), None
    ),
    "a limit n allows n comebacks": (
        Fail(error=ERROR), job(retries=2), raised(), None
    ),
    "timeouts and stalls do not count as retries": (
        RetryLater(delay=2000, error=ERROR), job(timeouts=9, stalls=9), raised(), None
    ),
    "a permanent error fails at once": (
        Fail(error=PERMANENT), job(), raised(permanent=True), None
    ),
    "an error may say how long to wait": (
        RetryLater(delay=7, error=ERROR), job(retries=1), raised(delay=7), None
    ),
    "at once is a time, too": (
        RetryLater(delay=0, error=ERROR), job(), raised(delay=0), None
    ),
    "an error may say until when to wait": (
        RetryLater(run_at=99, error=ERROR), job(), raised(run_at=99), None
    ),
    "what an error asks for is within the limit": (
        Fail(error=ERROR), job(retries=2), raised(delay=7), None
    ),
    "a stall that is permanent stays a stall": (
        Fail(error=STALLED), job(),
        Raised(error=STALLED, permanent=True), None
    ),
    "a timeout is retried": (
        RetryLater(delay=2000, cause="timeout", error=TIMED_OUT), job(retries=2), raised(), "timeout"
    ),
    "timeouts have their own limit": (
        Fail(error=TIMED_OUT), job(timeouts=1), raised(), "timeout"
    ),
    "a permanent error counts although the time was over": (
        Fail(error=PERMANENT), job(), raised(permanent=True), "timeout"
    ),
    "who was asked to stop is cancelled": (
        Cancelled(), job(), raised(), "cancel"
    ),
    "who makes room for the worker's end is released": (
        Release(), job(), raised(), "release"
    ),
    "a process that died is a stall": (
        RetryLater(delay=2000, cause="stall", error=STALLED), job(retries=2), Died(ERROR), None
    ),
    "it comes back whatever its stalls: the next claim decides": (
        RetryLater(delay=0, cause="stall", error=STALLED), job(stalls=4), Died(ERROR), None
    ),
    "a process that died before its handler began is a release": (
        Release(), job(retries=2, stalls=9), NotEntered(), None
    ),
    "a cancelled run whose handler did not begin is cancelled": (
        Cancelled(), job(), NotEntered(), "cancel"
    ),
    "a snooze is a release with its delay": (
        Release(delay=7), job(retries=2), Snoozed(delay=7), None
    ),
    "a snooze is a release until its time": (
        Release(run_at=99), job(retries=2), Snoozed(run_at=99), None
    ),
    "a cancelled run that snoozes is cancelled": (
        Cancelled(), job(), Snoozed(delay=7), "cancel"
    ),
    "a released run that snoozes keeps its place": (
        Release(), job(), Snoozed(delay=7), "release"
    ),
    "a hand-off counts however late": (
        HandOff(), job(), HandedOff(), "timeout"
    ),
    "the follow-ups of an error are those of the failure": (
        Fail(error=ERROR, then=FOLLOW_UPS), job(retries=2), Raised(error=ERROR, follow_ups=FOLLOW_UPS), None
    ),
    "the follow-ups of a timeout are those of the failure": (
        Fail(error=TIMED_OUT, then=FOLLOW_UPS), job(timeouts=1),
        Raised(error=ERROR, follow_ups=FOLLOW_UPS), "timeout"
    ),
    "a retry has no follow-ups": (
        RetryLater(delay=2000, error=ERROR), job(), Raised(error=ERROR, follow_ups=FOLLOW_UPS), None
    ),
    "a process that was ended at the deadline is a timeout": (
        RetryLater(delay=2000, cause="timeout", error=TIMED_OUT), job(), Died(ERROR), "timeout"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("expected", "of", "verdict", "stop"), CASES.values(), ids=CASES)
def test_a_run_is_settled(expected: SettleAction, of: Job, verdict: Verdict, stop: StopReason | None) -> None:
    assert settle_action(of, LIMITS, verdict, stop=stop) == expected


def test_no_limit_is_no_limit() -> None:
    limits = HandlerLimits(max_retries=None, backoff=Fixed(1))

    assert settle_action(job(retries=10_000), limits, raised()) == RetryLater(delay=1000, error=ERROR)


def test_jitter_is_drawn_by_luck() -> None:
    limits = HandlerLimits(backoff=Exponential(2, 300, jitter=True))

    assert 1000 == retry_delay(job(retries=1), limits, "error", jitter_factor=0.25)


def test_a_job_runs_again_until_its_stalls_exceed_the_limit() -> None:
    assert [True, True, False] == [
        fail_if_stalled_too_often(job(stalls=n), LIMITS) is None for n in (0, 3, 4)
    ]


def test_a_job_that_stalled_too_often_says_what_happened_last() -> None:
    end = fail_if_stalled_too_often(job(stalls=4, error=Error(type="ProcessDied", message="killed")), LIMITS)

    assert end is not None
    assert "stalled 4 times, more than max_stalls=3 allows; last: killed" == end.error.message


def test_without_a_limit_stalls_never_end_a_job() -> None:
    assert fail_if_stalled_too_often(job(stalls=10_000), HandlerLimits(max_stalls=None)) is None


@pytest.mark.parametrize(
    ("start_by", "late"), [(None, False), (UNSET, False), (1001, False), (1000, True), (1, True)]
)
def test_a_job_that_was_claimed_at_its_deadline_is_cancelled(
    start_by: int | UnsetType | None, *, late: bool
) -> None:
    run = ActiveRun(fence=1, lease="l", holder="h", claimed_at=1000)
    claimed = replace(job(), data=JobData(overrides=Overrides(start_by=start_by)), run=run)
    action = cancel_if_too_late(claimed)

    assert late == (action is not None)
    assert action is None or (action.error is not None and f"start_by={start_by} " in action.error.message)


def test_a_job_without_overrides_has_no_deadline() -> None:
    assert cancel_if_too_late(job()) is None


def test_a_completion_that_was_refused_fails_with_the_reason() -> None:
    end = fail_after_refusal("result has 9 bytes; the limit is 8")

    assert "result has 9 bytes; the limit is 8" in end.error.message
