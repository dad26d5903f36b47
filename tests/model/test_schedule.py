"""Schedules: the tick after an instant, and the enqueue of the next tick."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.model.job import ActiveRun, Error, Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    Reject,
    Release,
    RetryLater,
    SettleAction,
)
from dibs.model.schedule import (
    JOIN_PENDING_TICK,
    KEEP_LIVE_TICK,
    MISSED_AFTER,
    SKIP_MISSED_TICK,
    TICK_ID,
    Every,
    Schedule,
    missing_tick,
    with_next_tick,
)

#: Hypothesis settings without a deadline, because a busy machine is slow.
unhurried = settings(deadline=None)

MINUTE = 60_000
DAY = 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


# -- every -------------------------------------------------------------------------------------------


@unhurried
@given(st.integers(1, 10**10), st.integers(0, 2**52))
def test_an_interval_is_a_grid(length: int, instant: int) -> None:
    tick = Every(length).after(instant)

    assert instant < tick <= instant + length
    assert 0 == tick % length


# -- the enqueue of the next tick ---------------------------------------------------------------------

DATA = JobData(payload=b"{}")
ERROR = Error(type="E")
MISSED_IS_MADE_UP, MISSED_IS_LEFT_OUT = (
    Schedule(times=Every(MINUTE), data=DATA, catch_up=catch_up) for catch_up in (True, False)
)


def settled(how: SettleAction, *, now: int, catch_up: bool = True) -> SettleAction:
    """Return the action for a tick that was claimed at minute 10."""
    schedule = MISSED_IS_MADE_UP if catch_up else MISSED_IS_LEFT_OUT
    return with_next_tick(schedule, "q", how, claimed_at=10 * MINUTE, now=now)


def tick(run_at: int) -> NewJob:
    return NewJob(id=TICK_ID, data=DATA, run_at=run_at)


OTHER = FollowUp(queue="other", job=NewJob(id="x"))


@pytest.mark.parametrize("how", [Complete(result=b"1", then=(OTHER,)), Fail(error=ERROR, then=(OTHER,))])
def test_an_end_has_the_next_tick_in_it(how: Complete | Fail) -> None:
    ended = settled(how, now=10 * MINUTE + 1)

    assert isinstance(ended, type(how))
    assert (OTHER, FollowUp(queue="q", job=tick(11 * MINUTE), on_conflict=JOIN_PENDING_TICK)) == ended.then


@pytest.mark.parametrize(("catch_up", "expected"), [(True, 11), (False, 14)])
def test_a_tick_that_fell_due_during_the_run(*, catch_up: bool, expected: int) -> None:
    ended = settled(Complete(), now=13 * MINUTE + 1, catch_up=catch_up)

    assert isinstance(ended, Complete)
    assert [tick(expected * MINUTE)] == [then.job for then in ended.then]


@pytest.mark.parametrize("how", [Release(), Cancelled(), HandOff()])
def test_the_others_stay_as_they_are(how: SettleAction) -> None:
    assert how is settled(how, now=10 * MINUTE)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            RetryLater(delay=1000, cause="stall", error=ERROR),
            RetryLater(delay=1000, cause="stall", error=ERROR),
        ),
        (RetryLater(delay=MINUTE, error=ERROR), RetryLater(run_at=12 * MINUTE, error=ERROR)),
        (RetryLater(run_at=DAY, cause="timeout"), RetryLater(run_at=12 * MINUTE, cause="timeout")),
        (RetryLater(run_at=11 * MINUTE), RetryLater(run_at=11 * MINUTE)),
        (RetryLater(), RetryLater()),
    ],
)
def test_what_comes_back_does_so_by_the_next_tick(asked: RetryLater, expected: RetryLater) -> None:
    assert expected == settled(asked, now=11 * MINUTE + 1)


def live(run_at: int, *, active: bool = False) -> Slot:
    run = ActiveRun(fence=1, lease="l", holder="", claimed_at=run_at) if active else None
    return Slot(Job(id=TICK_ID, data=DATA, run_at=run_at, enqueued_at=0, seq=1, first=1, revision=1, run=run))


def ended(kind: str, run_at: int) -> Slot:
    return Slot(
        outcome=Outcome(kind=kind, fence=1, first=1, revision=1, ended_at=0, expires_at=None, run_at=run_at)  # type: ignore[arg-type]
    )


NOW = 10 * MINUTE + 1

# The slot of the schedule, a time, and the tick that `missing_tick` then requests.
PLANTED = {
    "nothing": (Slot(), 11, Reject()),
    "a failed one": (ended("failed", 5 * MINUTE), 11, Reject()),
    "a completed one: it does not stand in the way": (ended("completed", 5 * MINUTE), 11, KEEP_LIVE_TICK),
    "one cancelled in its run": (ended("cancelled", 10 * MINUTE), 11, Reject()),
    "the next one cancelled": (ended("cancelled", 11 * MINUTE), 12, Reject()),
    "several cancelled": (ended("cancelled", 13 * MINUTE), 14, Reject()),
    "one cancelled that was of another schedule": (ended("cancelled", DAY + 1), 11, Reject()),
}


@pytest.mark.parametrize(("slot", "run_at", "how"), PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize("schedule", [MISSED_IS_MADE_UP, MISSED_IS_LEFT_OUT])
def test_a_missing_tick_is_planted(schedule: Schedule, slot: Slot, run_at: int, how: Reject) -> None:
    assert EnqueueRequest(job=tick(run_at * MINUTE), on_conflict=how) == missing_tick(schedule, slot, NOW)


@pytest.mark.parametrize("schedule", [MISSED_IS_MADE_UP, MISSED_IS_LEFT_OUT])
@pytest.mark.parametrize("slot", [live(11 * MINUTE), live(10 * MINUTE), live(DAY), live(0, active=True)])
def test_a_live_one_is_left_alone(schedule: Schedule, slot: Slot) -> None:
    assert missing_tick(schedule, slot, NOW) is None


def test_a_missed_one_waits_or_is_skipped() -> None:
    missed = live(7 * MINUTE)

    assert missing_tick(MISSED_IS_MADE_UP, missed, NOW) is None
    assert EnqueueRequest(job=tick(11 * MINUTE), on_conflict=SKIP_MISSED_TICK) == missing_tick(
        MISSED_IS_LEFT_OUT, missed, NOW
    )


def test_a_minute_late_is_missed_however_far_the_next_is() -> None:
    daily = Schedule(times=Every(DAY), data=DATA, catch_up=False)

    assert missing_tick(daily, live(DAY), DAY + MISSED_AFTER - 1) is None
    assert EnqueueRequest(job=tick(2 * DAY), on_conflict=SKIP_MISSED_TICK) == missing_tick(
        daily, live(DAY), DAY + MISSED_AFTER
    )


def test_what_comes_often_is_missed_once_the_next_one_is_due() -> None:
    often = Schedule(times=Every(1000), data=DATA, catch_up=False)

    assert missing_tick(often, live(DAY), DAY + 999) is None
    assert EnqueueRequest(job=tick(DAY + 2000), on_conflict=SKIP_MISSED_TICK) == missing_tick(
        often, live(DAY), DAY + 1000
    )
