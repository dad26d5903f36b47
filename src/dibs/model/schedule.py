"""Schedules: the times at which a job runs again and again, and the enqueue of its next run.

A tick is one run of a schedule. It is a job whose attribute SCHEDULE_ATTRIBUTE holds the schedule, and all
ticks of a schedule have the same id. The settlement of a tick also enqueues the tick after it, in one atomic
step, so a crash cannot lose the schedule, and a worker needs no other place to know it from. A task with
`every` or `cron` declares the schedule with the id TICK_ID; `queue.schedules` makes others at run time.

Times are ms since the epoch, UTC.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention, Slot
from dibs.model.limits import LATEST_TIME
from dibs.model.requests import (
    DEFAULT_UPDATE,
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Update,
)

if TYPE_CHECKING:
    # Only schedules with a cron expression import cronsim and zoneinfo.
    from dibs.model.cron import Cron

#: The id of each tick of the schedule that a task declares. One id has one live job, so several processes
#: cannot enqueue a tick twice.
TICK_ID: Final = "schedule"
#: The first part of the ids of ticks of the schedules made at run time. The name of the schedule follows.
NAME_PREFIX: Final = "schedule:"
#: The attribute with the schedule of a tick, as {"cron": "0 3 * * *", "tz": "UTC"} or {"every": 60000}.
SCHEDULE_ATTRIBUTE: Final = "dibs.schedule"
#: The attribute with the ScheduleState of a tick, if it has one.
STATE_ATTRIBUTE: Final = "dibs.schedule_state"
ScheduleState = Literal["paused", "removed"]
#: A rule for ticks that fall due while the run of an earlier tick is active, see `Schedule.overlap`.
Overlap = Literal["queue", "skip", "replace"]
OVERLAPS: Final[tuple[Overlap, ...]] = get_args(Overlap)
#: The run_at of the next tick of a paused schedule.
PAUSED_UNTIL: Final = LATEST_TIME
#: The time in ms after which a waiting tick counts as missed, for schedules without `catch_up`.
MISSED_AFTER: Final = 60_000
#: The time in ms until a worker tries a tick again whose schedule it cannot read.
UNREADABLE_PAUSE: Final = 60_000
#: The time in ms for which the outcome of a removed schedule is kept. Meanwhile workers of an older release,
#: which still declare the schedule, enqueue no missing tick of it.
REMOVED_FOR: Final = 600_000

#: Leave a live tick unchanged. Unlike Reject, enqueue the tick even if a completed outcome is kept.
KEEP_LIVE_TICK: Final = Update(data=False, run_at="never", reset_counts=False)
#: Replace the data of a live tick, and keep its time.
REPLACE_DATA: Final = Update(run_at="never", reset_counts=False)


class Every(Struct, frozen=True, tag="every"):
    """Ticks at all multiples of `length` ms since the epoch, so that all processes compute the same ticks."""

    #: The time between two ticks, in ms.
    length: int

    def after(self, instant: int) -> int:
        """Return the first tick later than `instant`, both in ms since the epoch."""
        return (instant // self.length + 1) * self.length


class Schedule(Struct, frozen=True, kw_only=True):
    """A schedule: its `times`, and in `data` the job that each of its ticks enqueues."""

    times: Every | Cron
    #: The data of the job of each tick, without the attributes of the schedule.
    data: JobData = JobData()
    #: True to run one tick late after missed ticks; False to skip to the next tick.
    catch_up: bool = True
    #: `queue` runs one tick after the run, `skip` none, and `replace` asks the run to stop.
    overlap: Overlap = "queue"
    paused: bool = False

    def next_tick(self, instant: int) -> int:
        """Return the time of the first tick later than `instant`; PAUSED_UNTIL if the schedule is paused."""
        return PAUSED_UNTIL if self.paused else self.times.after(instant)

    def job(self, id: str, run_at: int) -> NewJob:
        """Return the job of a tick."""
        attributes = {**self.data.attributes, SCHEDULE_ATTRIBUTE: _encode(self)}
        if self.paused:
            attributes[STATE_ATTRIBUTE] = msgspec.json.encode("paused")
        return NewJob(id=id, data=replace(self.data, attributes=attributes), run_at=run_at)

    def __str__(self) -> str:
        """Return the times as text, such as "cron 0 3 * * * in Europe/Berlin" or "every 60000 ms"."""
        times = self.times
        late = "" if self.catch_up else ", without catch_up"
        late += "" if self.overlap == "queue" else f", overlap {self.overlap}"
        if isinstance(times, Every):
            return f"every {times.length} ms{late}"
        return f"cron {times.expression} in {times.tz}{late}"


def _encode(schedule: Schedule) -> bytes:
    times = schedule.times
    fields: dict[str, Any] = (
        {"every": times.length} if isinstance(times, Every) else {"cron": times.expression, "tz": times.tz}
    )
    if not schedule.catch_up:
        fields["catch_up"] = False
    if schedule.overlap != "queue":
        fields["overlap"] = schedule.overlap
    return msgspec.json.encode(fields)


@lru_cache(maxsize=1024)
def _decode(encoded: bytes) -> Schedule:
    """Return a stored schedule without its data. Raise Refused."""
    try:
        fields = msgspec.json.decode(encoded, type=dict[str, Any])
        overlap = msgspec.convert(fields.get("overlap", "queue"), Overlap)
        times: Every | Cron
        if "every" in fields:
            times = Every(max(1, int(fields["every"])))
        else:
            from dibs.model.cron import Cron  # noqa: PLC0415 - imports calendars and time zones

            times = Cron(fields["cron"], fields.get("tz", "UTC"))
        return Schedule(times=times, catch_up=bool(fields.get("catch_up", True)), overlap=overlap)
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        text = f"the attribute {SCHEDULE_ATTRIBUTE} is {encoded[:100]!r}, which is no schedule: {error}"
        raise Refused(text, field="attributes") from None


def is_tick_id(id: str) -> bool:
    """Return whether a tick may have this id."""
    return id == TICK_ID or id.startswith(NAME_PREFIX)


def read_schedule(data: JobData) -> Schedule | None:
    """Return the schedule that a job carries; None without one. Raise Refused if it cannot be read."""
    encoded = data.attributes.get(SCHEDULE_ATTRIBUTE)
    if encoded is None:
        return None
    own = {k: v for k, v in data.attributes.items() if k not in (SCHEDULE_ATTRIBUTE, STATE_ATTRIBUTE)}
    paused = read_state(data.attributes) == "paused"
    return replace(_decode(encoded), data=replace(data, attributes=own, memo=None), paused=paused)


def read_state(attributes: Any) -> ScheduleState | None:
    """Return the state of a schedule from the attributes of its tick; None if it goes on."""
    encoded = attributes.get(STATE_ATTRIBUTE)
    return None if encoded is None else msgspec.json.decode(encoded)


def pending_data(slot: Slot) -> JobData | None:
    """Return the data of the next tick of a slot: that of the successor, or of the current job, or None."""
    if slot.successor is not None and slot.successor.creates:
        return slot.successor.data
    return None if slot.current is None else slot.current.data


# -- runs ----------------------------------------------------------------------------------------------------


def refuse_tick(job: Job) -> Release | Cancelled | None:
    """Return the action that settles a claimed tick without a run; None if it may run. Raise Refused.

    A tick of a removed schedule is cancelled. Without `catch_up`, a missed tick is released until the next.
    """
    attributes = job.data.attributes
    if read_state(attributes) == "removed":
        message = "the schedule was removed while its job ran"
        return Cancelled(error=Error(type="ScheduleRemoved", message=message, kind="permanent"))
    schedule = read_schedule(job.data) if SCHEDULE_ATTRIBUTE in attributes else None
    if schedule is None or schedule.catch_up or job.run is None or schedule.paused:
        return None
    claimed_at = job.run.claimed_at
    if claimed_at < min(job.run_at + MISSED_AFTER, schedule.times.after(job.run_at)):
        return None
    return Release(run_at=schedule.times.after(claimed_at))


def refuse_hand_off(job: Job) -> None:
    """Raise Refused for a tick that may not be handed off.

    `finish` could not enqueue the next tick of a schedule made at run time, and no worker would replace a run
    that none holds.
    """
    if SCHEDULE_ATTRIBUTE not in job.data.attributes:
        return
    schedule = _readable_schedule(job.data)
    if schedule is not None and schedule.overlap == "replace":
        raise Refused(
            'a run of a schedule with overlap="replace" cannot be handed off, because the worker that holds '
            "it stops it at the next tick; enqueue a job that hands itself off",
            field="hand_off",
        )
    if job.id.startswith(NAME_PREFIX):
        raise Refused(
            "the job of a schedule cannot be handed off, because its end enqueues the next one; enqueue a "
            "job that hands itself off",
            field="hand_off",
        )


def next_replacement(schedule: Schedule, slot: Slot, *, fence: int, claimed_at: int) -> int | None:
    """Return the time at which the next tick replaces an active run; None if the run goes on.

    It is the time of what waits behind the run: a schedule may have been changed, or a tick enqueued by hand,
    since the claim. The run has ended or lost its job if the slot has another fence.
    """
    current, successor = slot.current, slot.successor
    if current is None or current.run is None or current.run.fence != fence:
        return None
    if successor is None or not successor.creates:
        return schedule.next_tick(claimed_at)
    return None if read_state(successor.data.attributes) == "removed" else successor.run_at


def replacement(schedule: Schedule, id: str, tick: int) -> EnqueueRequest:
    """Return the request that asks an active run to stop, and enqueues the next tick behind it.

    A tick that waits there already keeps its data and its time.
    """
    return EnqueueRequest(job=schedule.job(id, tick), on_conflict=replace(KEEP_LIVE_TICK, supersede=True))


def with_next_tick(
    schedule: Schedule, queue: str, id: str, action: SettleAction, *, claimed_at: int, now: int
) -> SettleAction:
    """Return the action that settles a tick, extended so that the schedule continues.

    - Complete and Fail get the next tick as a follow-up.
    - RetryLater gets the time of the next tick, if the retry would come later. The retry then is that tick.
    - Other actions stay unchanged. After a cancellation, `missing_tick` restores a declared schedule.

    A tick that was enqueued during the run stays as it is: it may have other times, or be removed.
    `claimed_at` is the time at which the tick was claimed, `now` the present time.
    """
    if isinstance(action, RetryLater):
        return _retry_by_next_tick(schedule, action, now)
    if not isinstance(action, (Complete, Fail)):
        return action
    # Else the next tick counts from the claim: a tick that fell due during the run is due at once.
    skips = schedule.overlap == "skip" or not schedule.catch_up
    tick = schedule.job(id, schedule.next_tick(now if skips else claimed_at))
    return replace(action, then=(*action.then, FollowUp(queue=queue, job=tick, on_conflict=KEEP_LIVE_TICK)))


def _retry_by_next_tick(schedule: Schedule, action: RetryLater, now: int) -> RetryLater:
    asked = action.run_at if action.run_at is not None else now + (action.delay or 0)
    tick = schedule.next_tick(now)
    return action if asked <= tick else replace(action, delay=None, run_at=tick)


# -- requests ------------------------------------------------------------------------------------------------


def missing_tick(schedule: Schedule, slot: Slot, now: int) -> EnqueueRequest | None:
    """Return the request that enqueues the next tick of a declared schedule; None if a tick is live.

    `slot` holds the id of the schedule. Several processes may send the request: only the first one has an
    effect. Also return None if a worker has removed the schedule a short time ago.
    """
    outcome = slot.outcome
    if slot.current is not None or (outcome and read_state(outcome.kept_attributes) == "removed"):
        return None
    return _first_tick(_with_kept_times(schedule, outcome), TICK_ID, outcome, now)


def _with_kept_times(schedule: Schedule, outcome: Outcome | None) -> Schedule:
    """Return the schedule with the times of its last tick, which a worker of a newer release may have set."""
    encoded = None if outcome is None else outcome.kept_attributes.get(SCHEDULE_ATTRIBUTE)
    if encoded is None:
        return schedule
    try:
        return replace(_decode(encoded), data=schedule.data)
    except Refused:
        return schedule


def changed_tick(schedule: Schedule, id: str, slot: Slot, now: int) -> EnqueueRequest | None:
    """Return the request that makes `schedule` the schedule of an id; None if it is that already.

    New times move a live tick to the next of these times. A tick that is due keeps its time, because it was
    accepted. A tick of a declared schedule that a user enqueued by hand stays as it is, and a paused schedule
    stays paused.
    """
    pending, declared = pending_data(slot), id == TICK_ID
    if pending is None:
        return _first_tick(schedule, id, slot.outcome, now) if declared else _tick_request(schedule, id, now)
    stored = _readable_schedule(pending)
    if stored is not None and stored.paused:
        schedule = replace(schedule, paused=True)
    is_plain = SCHEDULE_ATTRIBUTE not in pending.attributes and read_state(pending.attributes) is None
    if stored == schedule or (is_plain and declared):
        return None
    current = slot.current
    waits = current is not None and current.run is None
    same_times = stored is not None and stored.times == schedule.times
    retries = same_times and current is not None and current.attempts > 0
    if waits and current is not None and (is_plain or current.run_at <= now or retries):
        return _tick_request(schedule, id, now, REPLACE_DATA)
    return _tick_request(schedule, id, now)


def _tick_request(
    schedule: Schedule, id: str, now: int, on_conflict: OnConflict = DEFAULT_UPDATE
) -> EnqueueRequest:
    return EnqueueRequest(job=schedule.job(id, schedule.next_tick(now)), on_conflict=on_conflict)


def _readable_schedule(data: JobData) -> Schedule | None:
    try:
        return read_schedule(data)
    except Refused:
        return None


def removal(id: str) -> EnqueueRequest:
    """Return the request that removes a schedule whose tick is live.

    A waiting tick becomes one that the caller then cancels. The end of an active tick leaves this request as
    it is (KEEP_LIVE_TICK), and the worker that claims it cancels it.
    """
    state = {STATE_ATTRIBUTE: msgspec.json.encode("removed")}
    retention = OutcomeRetention(cancelled=REMOVED_FOR)
    return EnqueueRequest(job=NewJob(id=id, data=JobData(attributes=state, retention=retention)))


def _first_tick(schedule: Schedule, id: str, outcome: Outcome | None, now: int) -> EnqueueRequest:
    # A tick completed without a follow-up: by `finish`, or by a worker whose app has no such schedule.
    ended = outcome is not None and outcome.kind == "completed"
    on_conflict: OnConflict = KEEP_LIVE_TICK if ended else Reject()
    tick = schedule.job(id, _first_uncancelled_tick(schedule, outcome, now))
    return EnqueueRequest(job=tick, on_conflict=on_conflict)


def _first_uncancelled_tick(schedule: Schedule, outcome: Outcome | None, now: int) -> int:
    """Return the time of the next tick after `now`. Skip that tick if it was cancelled before its time."""
    if outcome is not None and outcome.kind == "cancelled" and now < outcome.run_at < PAUSED_UNTIL:
        cancelled = outcome.run_at
        if schedule.times.after(cancelled - 1) == cancelled:
            return schedule.next_tick(cancelled)
    return schedule.next_tick(now)
