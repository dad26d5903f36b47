"""The schedules of periodic tasks: the times at which they run, and the enqueue of the next run.

A tick is one run of a schedule. All ticks have the same id in the queue of their task, so the job with that
id is the next tick. The settlement of a tick also enqueues the tick after it, in one atomic step, so a crash
cannot lose the schedule. Times are ms since the epoch, UTC.
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
    # Only schedules with a cron expression import cronsim and zoneinfo.
    from dibs.model.cron import Cron

#: The id of every tick. One id has one live job, so several processes cannot enqueue a tick twice.
TICK_ID: Final = "schedule"
#: The time in ms after which a waiting tick counts as missed, for schedules without `catch_up`.
MISSED_AFTER: Final = 60_000

#: If a tick is waiting already, keep its data and take the earlier of the two times.
JOIN_PENDING_TICK: Final = Update(data=False, run_at="earlier", reset_counts=False)
#: Leave a live tick unchanged. Unlike Reject, enqueue the tick even if a completed outcome is kept.
KEEP_LIVE_TICK: Final = Update(data=False, run_at="never", reset_counts=False)
#: Move a missed tick to the later of the two times, and set its counts to 0.
SKIP_MISSED_TICK: Final = Update(data=False, run_at="later", reset_counts=True)


class Every(Struct, frozen=True, tag="every"):
    """Ticks at all multiples of `length` ms since the epoch, so that all processes compute the same ticks."""

    #: The time between two ticks, in ms.
    length: int

    def after(self, instant: int) -> int:
        """Return the first tick later than `instant`, both in ms since the epoch."""
        return (instant // self.length + 1) * self.length


class Schedule(Struct, frozen=True, kw_only=True):
    """The schedule of a periodic task."""

    times: Every | Cron
    #: The data of the job of each tick.
    data: JobData = JobData()
    #: True to run one tick late after missed ticks; False to skip to the next tick.
    catch_up: bool = True


def with_next_tick(
    schedule: Schedule, queue: str, action: SettleAction, *, claimed_at: int, now: int
) -> SettleAction:
    """Return the action that settles a tick, extended so that the schedule continues.

    - Complete and Fail get the next tick as a follow-up.
    - RetryLater gets the time of the next tick, if the retry would come later. The retry then is that tick.
    - Other actions stay unchanged. After a cancellation, `missing_tick` restores the schedule.

    `claimed_at` is the time at which the tick was claimed, `now` the present time.
    """
    if isinstance(action, RetryLater):
        return _retry_by_next_tick(schedule, action, now)
    if not isinstance(action, (Complete, Fail)):
        return action
    # With catch_up the next tick counts from the claim: a tick that fell due during the run is due at once.
    tick = _tick_job(schedule, schedule.times.after(claimed_at if schedule.catch_up else now))
    return replace(
        action, then=(*action.then, FollowUp(queue=queue, job=tick, on_conflict=JOIN_PENDING_TICK))
    )


def _retry_by_next_tick(schedule: Schedule, action: RetryLater, now: int) -> RetryLater:
    asked = action.run_at if action.run_at is not None else now + (action.delay or 0)
    tick = schedule.times.after(now)
    return action if asked <= tick else replace(action, delay=None, run_at=tick)


def missing_tick(schedule: Schedule, slot: Slot, now: int) -> EnqueueRequest | None:
    """Return the request that enqueues the next tick of a schedule, or None if a tick is live.

    `slot` holds the id of the schedule. Without `catch_up`, a request also moves a missed tick to its next
    time. Several processes may send the request: only the first one has an effect.
    """
    if slot.current is None:
        # A tick completed without a follow-up: by `finish`, or by a worker whose app has no such schedule.
        ended = slot.outcome is not None and slot.outcome.kind == "completed"
        return _tick_request(
            schedule,
            _first_uncancelled_tick(schedule, slot.outcome, now),
            KEEP_LIVE_TICK if ended else Reject(),
        )
    if not schedule.catch_up and slot.current.run is None and _is_missed(schedule, slot.current, now):
        return _tick_request(schedule, schedule.times.after(now), SKIP_MISSED_TICK)
    return None


def _first_uncancelled_tick(schedule: Schedule, outcome: Outcome | None, now: int) -> int:
    """Return the time of the next tick after `now`. Skip that tick if it was cancelled before its time."""
    if outcome is not None and outcome.kind == "cancelled" and outcome.run_at > now:
        cancelled = outcome.run_at
        if schedule.times.after(cancelled - 1) == cancelled:
            return schedule.times.after(cancelled)
    return schedule.times.after(now)


def _is_missed(schedule: Schedule, tick: Job, now: int) -> bool:
    """Return whether a waiting tick is at least one minute late, or the tick after it is due already."""
    return now >= min(tick.run_at + MISSED_AFTER, schedule.times.after(tick.run_at))


def _tick_request(schedule: Schedule, run_at: int, on_conflict: OnConflict) -> EnqueueRequest:
    return EnqueueRequest(job=_tick_job(schedule, run_at), on_conflict=on_conflict)


def _tick_job(schedule: Schedule, run_at: int) -> NewJob:
    return NewJob(id=TICK_ID, data=schedule.data, run_at=run_at)
