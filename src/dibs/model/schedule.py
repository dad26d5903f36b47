"""When a periodic task runs: the ticks of its schedule, and how each brings about the next.

A schedule is one id in the task's queue. Its job is the next tick; the step that ends a tick enqueues the
one after it, so there is no moment at which it could be lost. Times are ms since the epoch, UTC.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.job import Data, Job, NewJob, Outcome, Slot
from dibs.model.requests import Complete, Fail, How, OnConflict, Reject, Request, Retry, Then, Update

#: The id of every tick: one at a time, whoever enqueues it.
TICK: Final = "schedule"
#: Ms after which a tick that is not to be caught up with counts as missed.
LATE: Final = 60_000

#: What was enqueued for the same id meanwhile stays as it is, unless it would come later.
JOINS: Final = Update(data=False, run_at="earlier", reset_counts=False)
#: Nothing of a live tick is touched. Unlike under Reject, a completed outcome is no reason not to run.
STANDS_BACK: Final = Update(data=False, run_at="never", reset_counts=False)
#: A tick that was missed begins afresh, later.
SKIPS: Final = Update(data=False, run_at="later", reset_counts=True)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)


class Every(Struct, frozen=True, tag="every"):
    """At all multiples of `length` ms since the epoch: everybody knows them without asking."""

    length: int

    def after(self, instant: int) -> int:
        """Return the first tick later than the instant."""
        return (instant // self.length + 1) * self.length


class Cron(Struct, frozen=True, tag="cron"):
    """At the wall times in a zone that an expression of five fields names, or of six with seconds first.

    A wall time that does not exist runs at the next that does; one that occurs twice runs the first time.
    An expression with every hour in it names no wall time but a rhythm, and that has no gap: it goes on
    through an hour that occurs twice. Raises Refused naming `cron` or `tz`.
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        _check_expression(self.expression)
        _check_zone(self.tz)
        self.after(0)

    def after(self, instant: int) -> int:
        """Return the first tick later than the instant."""
        zone = ZoneInfo(self.tz)
        since = _EPOCH + instant * _MILLISECOND
        walls = CronSim(self.expression, since.astimezone(zone).replace(tzinfo=None, fold=0))
        if len(walls.hours) == 24:
            return _ms(self._beat(since, zone))
        for wall in walls:
            tick = _ms(_existing(wall, zone))
            if tick > instant:
                return tick
        raise _never(self.expression)

    def _beat(self, since: datetime, zone: ZoneInfo) -> datetime:
        """Return the first moment later than this at which the clock on the wall shows a time of ours."""
        ahead = _ahead(since, zone)
        moment = self._wall(since + ahead) - ahead
        if _ahead(moment, zone) == ahead:
            return moment
        # The clock is changed before that: from then on it is another clock.
        change = _change(since, moment, zone)
        ahead = _ahead(change, zone)
        return self._wall(change + ahead - _SECOND) - ahead

    def _wall(self, since: datetime) -> datetime:
        """Return the first of our times later than this, on a clock that nobody changes."""
        try:
            return next(CronSim(self.expression, since))
        except StopIteration:
            raise _never(self.expression) from None


def _never(expression: str) -> Refused:
    return Refused(f"cron is {expression!r}: there is no such day in fifty years", field="cron")


def _ahead(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return how far the clock on the wall is ahead of UTC."""
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the second between two moments in which the clock on the wall was changed."""
    ahead = _ahead(before, zone)
    before = before.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _ahead(middle, zone) == ahead:
            before = middle
        else:
            after = middle
    return after


def _check_expression(expression: str) -> None:
    try:
        CronSim(str(expression), _EPOCH)
    # Where it stumbles over a step, the library has an assertion.
    except (CronSimError, AssertionError) as error:
        why = str(error).lower() or "bad step"
        raise Refused(
            f"cron is {expression!r}: {why}; it has five fields, minute hour day-of-month month day-of-week, "
            'as in "*/5 * * * *"',
            field="cron",
        ) from None


def _check_zone(tz: str) -> None:
    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, TypeError, OSError):
        raise Refused(
            f'tz is {tz!r}, which is no time zone here; they are called as in "Europe/Berlin" '
            "(where the system has none at all, install tzdata)",
            field="tz",
        ) from None


def _existing(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when a clock on the wall first shows this time, or else the next time it does show."""
    while True:
        # fold=0, as it is unless said otherwise: the first of two.
        moment = wall.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
            return moment
        wall = wall.replace(second=0) + _MINUTE


def _ms(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND


class Schedule(Struct, frozen=True, kw_only=True):
    """What makes a task periodic."""

    times: Every | Cron
    #: What each tick is enqueued with.
    data: Data = Data()
    #: Whether a tick that was missed runs, once, or is skipped to the next.
    catch_up: bool = True


def carried_on(schedule: Schedule, queue: str, how: How, *, claimed_at: int, now: int) -> How:
    """Return the settlement of a tick such that the schedule goes on: an end has the next tick in its step.

    What comes back, comes back by the next tick at the latest, and counts as that. A release leaves all as
    it was; a cancellation ends without follow-ups, and the next tick is planted.
    """
    if isinstance(how, Retry):
        return _in_time(schedule, how, now)
    if not isinstance(how, (Complete, Fail)):
        return how
    # Counted from the claim, a tick that fell due during the run is due at once.
    tick = _tick(schedule, schedule.times.after(claimed_at if schedule.catch_up else now))
    return replace(how, then=(*how.then, Then(queue=queue, job=tick, on_conflict=JOINS)))


def _in_time(schedule: Schedule, how: Retry, now: int) -> Retry:
    asked = how.run_at if how.run_at is not None else now + (how.delay or 0)
    tick = schedule.times.after(now)
    return how if asked <= tick else replace(how, delay=None, run_at=tick)


def planted(schedule: Schedule, slot: Slot, now: int) -> Request | None:
    """Return what to enqueue for the schedule to live on, from the slot of its id; None if it does.

    Any number of processes may enqueue it: the second changes nothing.
    """
    if slot.current is None:
        # What completed without a next tick was ended by hand, or by a worker that knew of no schedule.
        ended = slot.outcome is not None and slot.outcome.kind == "completed"
        return _request(schedule, _first(schedule, slot.outcome, now), STANDS_BACK if ended else Reject())
    if not schedule.catch_up and slot.current.run is None and _missed(schedule, slot.current, now):
        return _request(schedule, schedule.times.after(now), SKIPS)
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
    return now >= min(tick.run_at + LATE, schedule.times.after(tick.run_at))


def _request(schedule: Schedule, run_at: int, on_conflict: OnConflict) -> Request:
    return Request(job=_tick(schedule, run_at), on_conflict=on_conflict)


def _tick(schedule: Schedule, run_at: int) -> NewJob:
    return NewJob(id=TICK, data=schedule.data, run_at=run_at)
