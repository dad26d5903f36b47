"""When a periodic task runs: the ticks of its schedule, and how each brings about the next.

A schedule is one id in the task's queue. Its job is the next tick; the step that ends a tick enqueues the
one after it, so there is no moment at which it could be lost. Times are ms since the epoch, UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from dibs.model.job import Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    OnConflict,
    Reject,
    RetryLater,
    SettleAction,
    Update,
)

if TYPE_CHECKING:
    # Calendars and zones are imported by whoever makes such a schedule, and few do.
    from dibs.model.cron import Cron

#: The id of every tick: one at a time, whoever enqueues it.
TICK: Final = "schedule"
#: Ms after which a tick that is not to be caught up with counts as missed.
MISSED_AFTER: Final = 60_000

#: What was enqueued for the same id meanwhile stays as it is, unless it would come later.
JOIN_PENDING_TICK: Final = Update(data=False, run_at="earlier", reset_counts=False)
#: Nothing of a live tick is touched. Unlike under Reject, a completed outcome is no reason not to run.
KEEP_LIVE_TICK: Final = Update(data=False, run_at="never", reset_counts=False)
#: A tick that was missed begins afresh, later.
SKIP_MISSED_TICK: Final = Update(data=False, run_at="later", reset_counts=True)


class Every(Struct, frozen=True, tag="every"):
    """At all multiples of `length` ms since the epoch: everybody knows them without asking."""

    length: int

    def after(self, instant: int) -> int:
        """Return the first tick later than the instant."""
        return (instant // self.length + 1) * self.length


class Schedule(Struct, frozen=True, kw_only=True):
    """What makes a task periodic."""

    times: Every | Cron
    #: What each tick is enqueued with.
    data: JobData = JobData()
    #: Whether a tick that was missed runs, once, or is skipped to the next.
    catch_up: bool = True


def with_next_tick(schedule: Schedule, queue: str, how: SettleAction, *, claimed_at: int, now: int) -> SettleAction:
    """Return the settlement of a tick such that the schedule goes on: an end has the next tick in its step.

    What comes back, comes back by the next tick at the latest, and counts as that. A release leaves all as
    it was; a cancellation ends without follow-ups, and the next tick is planted.
    """
    if isinstance(how, RetryLater):
        return _in_time(schedule, how, now)
    if not isinstance(how, (Complete, Fail)):
        return how
    # Counted from the claim, a tick that fell due during the run is due at once.
    tick = _tick(schedule, schedule.times.after(claimed_at if schedule.catch_up else now))
    return replace(how, then=(*how.then, FollowUp(queue=queue, job=tick, on_conflict=JOIN_PENDING_TICK)))


def _in_time(schedule: Schedule, how: RetryLater, now: int) -> RetryLater:
    asked = how.run_at if how.run_at is not None else now + (how.delay or 0)
    tick = schedule.times.after(now)
    return how if asked <= tick else replace(how, delay=None, run_at=tick)


def missing_tick(schedule: Schedule, slot: Slot, now: int) -> EnqueueRequest | None:
    """Return what to enqueue for the schedule to live on, from the slot of its id; None if it does.

    Any number of processes may enqueue it: the second changes nothing.
    """
    if slot.current is None:
        # What completed without a next tick was ended by hand, or by a worker that knew of no schedule.
        ended = slot.outcome is not None and slot.outcome.kind == "completed"
        return _request(schedule, _first(schedule, slot.outcome, now), KEEP_LIVE_TICK if ended else Reject())
    if not schedule.catch_up and slot.current.run is None and _missed(schedule, slot.current, now):
        return _request(schedule, schedule.times.after(now), SKIP_MISSED_TICK)
    return None


def _first(schedule: Schedule, outcome: Outcome | None, now: int) -> int:
    """Return the first tick to plant: the next, unless that is the one that was cancelled."""
    if outcome is not None and outcome.kind == "cancelled" and outcome.run_at > now:
        cancelled = outcome.run_at
        if schedule.times.after(cancelled - 1) == cancelled:
            return schedule.times.after(cancelled)
    return schedule.times.after(now)


def _missed(schedule: Schedule, tick: Job, now: int) -> bool:
    """Tell whether a waiting tick is a minute late, or the one after it is due."""
    return now >= min(tick.run_at + MISSED_AFTER, schedule.times.after(tick.run_at))


def _request(schedule: Schedule, run_at: int, on_conflict: OnConflict) -> EnqueueRequest:
    return EnqueueRequest(job=_tick(schedule, run_at), on_conflict=on_conflict)


def _tick(schedule: Schedule, run_at: int) -> NewJob:
    return NewJob(id=TICK, data=schedule.data, run_at=run_at)
