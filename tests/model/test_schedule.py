"""Schedules: the tick after an instant, and the enqueue of the next tick."""

from __future__ import annotations

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.cron import Cron
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
    Update,
)
from dibs.model.schedule import (
    KEEP_LIVE_TICK,
    MISSED_AFTER,
    PAUSED_UNTIL,
    REPLACE_DATA,
    SCHEDULE_ATTRIBUTE,
    TICK_ID,
    Every,
    Overlap,
    Schedule,
    changed_tick,
    missing_tick,
    read_schedule,
    refuse_tick,
    removal,
    with_next_tick,
)

MINUTE = 60_000
DAY = 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


NOW = 10 * MINUTE + 1

# -- every -------------------------------------------------------------------------------------------


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
    return with_next_tick(schedule, "q", TICK_ID, how, claimed_at=10 * MINUTE, now=now)


def tick(run_at: int, *, catch_up: bool = True) -> NewJob:
    schedule = MISSED_IS_MADE_UP if catch_up else MISSED_IS_LEFT_OUT
    return schedule.job(TICK_ID, run_at)


OTHER = FollowUp(queue="other", job=NewJob(id="x"))


@pytest.mark.parametrize("how", [Complete(result=b"1", then=(OTHER,)), Fail(error=ERROR, then=(OTHER,))])
def test_an_end_has_the_next_tick_in_it(how: Complete | Fail) -> None:
    ended = settled(how, now=10 * MINUTE + 1)

    assert isinstance(ended, type(how))
    assert (OTHER, FollowUp(queue="q", job=tick(11 * MINUTE), on_conflict=KEEP_LIVE_TICK)) == ended.then


@pytest.mark.parametrize(("catch_up", "expected"), [(True, 11), (False, 14)])
def test_a_tick_that_fell_due_during_the_run(*, catch_up: bool, expected: int) -> None:
    ended = settled(Complete(), now=13 * MINUTE + 1, catch_up=catch_up)

    assert isinstance(ended, Complete)
    assert [tick(expected * MINUTE, catch_up=catch_up)] == [then.job for then in ended.then]


@pytest.mark.parametrize(("overlap", "expected"), [("queue", 11), ("skip", 14), ("replace", 11)])
def test_a_tick_that_falls_due_during_a_run_is_queued_or_skipped(overlap: Overlap, expected: int) -> None:
    schedule = Schedule(times=Every(MINUTE), overlap=overlap)
    ended = with_next_tick(schedule, "q", TICK_ID, Complete(), claimed_at=10 * MINUTE, now=13 * MINUTE + 1)

    assert isinstance(ended, Complete)
    assert [schedule.job(TICK_ID, expected * MINUTE)] == [then.job for then in ended.then]
    assert schedule == read_schedule(ended.then[0].job.data)


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


def live(
    run_at: int, *, active: bool = False, schedule: Schedule = MISSED_IS_MADE_UP, attempts: int = 0
) -> Slot:
    run = ActiveRun(fence=1, lease="l", holder="", claimed_at=NOW) if active else None
    data = schedule.job(TICK_ID, run_at).data
    job = Job(
        id=TICK_ID,
        data=data,
        run_at=run_at,
        enqueued_at=0,
        seq=1,
        first=1,
        revision=1,
        run=run,
        attempts=attempts,
    )
    return Slot(job)


def ended(kind: str, run_at: int) -> Slot:
    return Slot(
        outcome=Outcome(kind=kind, fence=1, first=1, revision=1, ended_at=0, expires_at=None, run_at=run_at)  # type: ignore[arg-type]
    )


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
    job = schedule.job(TICK_ID, run_at * MINUTE)

    assert EnqueueRequest(job=job, on_conflict=how) == missing_tick(schedule, slot, NOW)


@pytest.mark.parametrize("schedule", [MISSED_IS_MADE_UP, MISSED_IS_LEFT_OUT])
@pytest.mark.parametrize("slot", [live(11 * MINUTE), live(10 * MINUTE), live(DAY), live(0, active=True)])
def test_a_live_one_is_left_alone(schedule: Schedule, slot: Slot) -> None:
    assert missing_tick(schedule, slot, NOW) is None


@pytest.mark.parametrize(
    ("schedule", "run_at", "claimed_at", "next_tick"),
    [
        (MISSED_IS_MADE_UP, 7 * MINUTE, NOW, None),
        (MISSED_IS_LEFT_OUT, 7 * MINUTE, NOW, 11 * MINUTE),
        (MISSED_IS_LEFT_OUT, 10 * MINUTE, NOW, None),
        (replace(MISSED_IS_LEFT_OUT, times=Every(DAY)), DAY, DAY + MISSED_AFTER - 1, None),
        (replace(MISSED_IS_LEFT_OUT, times=Every(DAY)), DAY, DAY + MISSED_AFTER, 2 * DAY),
        (replace(MISSED_IS_LEFT_OUT, times=Every(1000)), DAY, DAY + 999, None),
        (replace(MISSED_IS_LEFT_OUT, times=Every(1000)), DAY, DAY + 1000, DAY + 2000),
    ],
)
def test_a_missed_tick_runs_or_is_released(
    schedule: Schedule, run_at: int, claimed_at: int, next_tick: int | None
) -> None:
    [job] = [live(run_at, schedule=schedule).current]
    assert job is not None
    run = ActiveRun(fence=1, lease="l", holder="", claimed_at=claimed_at)

    expected = None if next_tick is None else Release(run_at=next_tick)
    assert expected == refuse_tick(replace(job, run=run))


# -- a changed declaration -----------------------------------------------------------------------------------

HOURLY = replace(MISSED_IS_MADE_UP, times=Every(60 * MINUTE))
OTHER_DATA = replace(MISSED_IS_MADE_UP, data=JobData(payload=b"other"))
NEXT = 11 * MINUTE
PLAIN = Slot(replace(live(NEXT).current, data=DATA))  # type: ignore[type-var]
# The slot, the schedule, and the time and rule of the request that makes it the schedule of the slot.
CHANGED = {
    "the same": (live(NEXT), MISSED_IS_MADE_UP, None),
    "the same, active": (live(NEXT, active=True), MISSED_IS_MADE_UP, None),
    "nothing": (Slot(), HOURLY, (60 * MINUTE, Reject())),
    "other times": (live(NEXT), HOURLY, (60 * MINUTE, Update())),
    "other times, active": (live(NEXT, active=True), HOURLY, (60 * MINUTE, Update())),
    "other times, due": (live(NEXT - MINUTE), HOURLY, (60 * MINUTE, REPLACE_DATA)),
    "other data": (live(NEXT), OTHER_DATA, (NEXT, Update())),
    "other data, waiting for a retry": (live(NEXT, attempts=1), OTHER_DATA, (NEXT, REPLACE_DATA)),
    "paused": (live(NEXT), replace(MISSED_IS_MADE_UP, paused=True), (PAUSED_UNTIL, Update())),
    "enqueued by hand": (PLAIN, HOURLY, None),
}


@pytest.mark.parametrize(("slot", "schedule", "expected"), CHANGED.values(), ids=CHANGED)
def test_a_changed_schedule(
    slot: Slot, schedule: Schedule, expected: tuple[int, Update | Reject] | None
) -> None:
    request = None
    if expected is not None:
        request = EnqueueRequest(job=schedule.job(TICK_ID, expected[0]), on_conflict=expected[1])

    assert request == changed_tick(schedule, TICK_ID, slot, NOW)


@pytest.mark.parametrize(
    "schedule", [MISSED_IS_LEFT_OUT, HOURLY, Schedule(times=Cron("0 3 * * *", "Asia/Tokyo"))]
)
def test_a_job_carries_its_schedule(schedule: Schedule) -> None:
    assert schedule == read_schedule(schedule.job("schedule:a", 1).data)


def test_a_removed_schedule_is_cancelled_at_its_claim_and_stays_removed() -> None:
    slot = live(NEXT, active=True)
    assert slot.current is not None
    job = replace(slot.current, data=removal(TICK_ID).job.data)
    cancelled = refuse_tick(job)

    assert isinstance(cancelled, Cancelled)
    assert cancelled == with_next_tick(HOURLY, "q", TICK_ID, cancelled, claimed_at=NOW, now=NOW)
    outcome = ended("cancelled", NOW).outcome
    assert outcome is not None
    gone = Slot(outcome=replace(outcome, attributes=job.data.attributes))
    assert missing_tick(HOURLY, gone, NOW) is None
    assert changed_tick(HOURLY, TICK_ID, gone, NOW) is not None


@pytest.mark.parametrize("stored", [b"1", b"{}", b'{"cron": "x"}', b'{"cron": "* * * * *", "tz": "no"}'])
def test_a_schedule_that_cannot_be_read_is_refused(stored: bytes) -> None:
    with pytest.raises(Refused):
        read_schedule(JobData(attributes={SCHEDULE_ATTRIBUTE: stored}))
