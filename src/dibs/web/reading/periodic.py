"""The periodic tasks: schedules of the app, next runs in the storage, and the outcomes of last runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import evolve, frozen

from dibs.client.stored_schedules import has_schedule, readable_schedule, schedule_name
from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import Counts, State
from dibs.model.schedule import TICK_ID, Every, Schedule, is_tick_id
from dibs.storage.protocol import Storage
from dibs.web.reading.source import Source, gather
from dibs.web.reading.story import Stories

#: Most queues in which the page looks for a schedule, besides those of tasks of the app.
MAX_QUEUES: Final = 500
#: Most scheduled jobs of each queue among which the page looks for schedules, and most rows of the page.
MAX_SCHEDULED: Final = 500
MAX_ROWS: Final = 200
#: Most due and most active jobs of each queue among which the page looks: a schedule whose run is late, for
#: example because no worker runs, is no scheduled job any more.
MAX_DUE: Final = 50
#: The numbers of further ticks and of latest runs that a row lists.
MAX_TICKS: Final = 2
MAX_RUNS: Final = 5
#: Most tasks whose logs are read for their last runs, those with the next ticks first, and the seconds of
#: each. Eight are read at a time, so long logs add 0.3 s to a page.
MAX_LOGS: Final = 20
LOG_SECONDS: Final = 0.1


@frozen
class RunMark:
    """A run of a task, from the log. `at` is its end in ms since the epoch, `ran` its duration in ms."""

    kind: str
    at: int
    ran: int
    error_type: str


@frozen
class PeriodicRow:
    """A schedule. Times are ms since the epoch."""

    queue: str
    #: The id of its job, and the name of a schedule made at run time; "" for the one that a task declares.
    id: str
    name: str
    #: The stored schedule, or the one that the app declares; "" if it is unknown.
    schedule: str
    #: True if the queue is paused.
    paused: bool
    #: "waiting", "active", "paused", or "not stored" if no worker has stored the next run.
    state: str
    next_run: int | None
    #: The ticks after `next_run`, by the schedule of the app.
    later: tuple[int, ...]
    #: Kind, time and duration in ms of the last run whose outcome is kept; "" and None without one.
    last_kind: str
    last_at: int | None
    last_ran: int | None
    last_error: str
    #: The last runs in the log of the queue before the kept outcome, the latest first.
    runs: tuple[RunMark, ...] = ()
    #: True if the log was read in part so far.
    is_partial: bool = False


@frozen
class PeriodicPage:
    """The schedules of a storage, the next one first."""

    rows: tuple[PeriodicRow, ...]
    #: The number of schedules that were found, and whether a queue may have more.
    found: int
    may_miss: bool
    #: Number of queues in which the page looked, and the number of all queues.
    looked: int
    queues: int


async def read_periodic(source: Source, ticks: Stories, _params: Mapping[str, str]) -> PeriodicPage:
    """Return the schedules that the app declares, and those that are stored.

    `ticks` remembers how far the logs of the queues were read.
    """
    storage = await source.storage()
    queues = await source.census.queues()
    declared = {
        name: handler.schedule
        for name, handler in source.app.handlers.items()
        if handler.schedule is not None
    }
    names = list(dict.fromkeys([*declared, *sorted(queues)]))[: MAX_QUEUES + len(declared)]

    counts = await storage.counts(names)

    async def read_one(name: str) -> tuple[str, dict[str, Slot], bool]:
        [slot] = await storage.get(name, [TICK_ID])
        slots = {TICK_ID: slot} if name in declared or slot.current is not None else {}
        stored, more = await _stored_schedules(storage, name, counts[name])
        slots.update(stored)
        return name, slots, more

    found = await gather(names, read_one)
    rows = [
        _row(name, id, slot, declared.get(name) if id == TICK_ID else None, queues.get(name))
        for name, slots, _ in found
        for id, slot in slots.items()
    ]
    rows.sort(key=lambda row: (row.next_run is None, row.next_run or 0, row.queue, row.name))
    total, may_miss = len(rows), any(more for _, _, more in found)
    rows = rows[:MAX_ROWS]

    async def add_runs(row: PeriodicRow) -> PeriodicRow:
        return await _with_runs(source, storage, ticks, row)

    shown = [*await gather(rows[:MAX_LOGS], add_runs), *rows[MAX_LOGS:]]
    return PeriodicPage(tuple(shown), total, may_miss, len(names), len({*names, *queues}))


async def _stored_schedules(storage: Storage, queue: str, count: Counts) -> tuple[dict[str, Slot], bool]:
    """Return the jobs of schedules by id, and True if a part of the queue was not read."""
    found: dict[str, Slot] = {}
    more = False
    looks: list[tuple[State, int, int]] = [
        ("scheduled", MAX_SCHEDULED, count.scheduled),
        ("waiting", MAX_DUE, count.waiting - count.scheduled),
        ("active", MAX_DUE, count.active),
    ]
    for state, limit, exists in looks:
        if exists:
            page = await storage.list(queue, state, limit=limit)
            found.update((id, slot) for id, slot in page.items if is_tick_id(id) and has_schedule(slot))
            more = more or page.after is not None
    return found, more


async def _with_runs(source: Source, storage: Storage, ticks: Stories, row: PeriodicRow) -> PeriodicRow:
    story = await ticks.read(source, storage, row.queue, row.id, seconds=LOG_SECONDS)
    runs = [
        RunMark(entry.kind, entry.at, entry.ran, entry.error.type if entry.error else "")
        for entry in story.entries
        if entry.ran is not None
    ]
    # The run of the outcome has its place in the row already.
    first = 1 if runs and runs[0].at == row.last_at else 0
    return evolve(row, runs=tuple(runs[first:MAX_RUNS]), is_partial=not story.is_complete)


def _later(schedule: Schedule | None, next_run: int | None) -> tuple[int, ...]:
    """Return the ticks of a schedule after the next run."""
    ticks: list[int] = []
    while schedule is not None and next_run is not None and len(ticks) < MAX_TICKS:
        try:
            next_run = schedule.times.after(next_run)
        except Refused:
            # The expression matches no further day.
            break
        ticks.append(next_run)
    return tuple(ticks)


def _row(
    queue: str, id: str, slot: Slot, declared: Schedule | None, settings: Settings | None
) -> PeriodicRow:
    job, outcome = slot.current, slot.outcome
    schedule = readable_schedule(slot) or declared
    paused = schedule is not None and schedule.paused
    next_run = None if job is None or job.run is not None else job.run_at
    if slot.successor is not None:
        next_run = slot.successor.run_at
    if paused:
        next_run = None
    return PeriodicRow(
        queue=queue,
        id=id,
        name=schedule_name(id),
        schedule=schedule_text(schedule),
        paused=settings is not None and settings.paused,
        state="not stored"
        if job is None
        else "active"
        if job.run is not None
        else "paused"
        if paused
        else "waiting",
        next_run=next_run,
        later=_later(schedule, next_run),
        last_kind="" if outcome is None else outcome.kind,
        last_at=None if outcome is None else outcome.ended_at,
        last_ran=None
        if outcome is None or outcome.claimed_at is None
        else max(0, outcome.ended_at - outcome.claimed_at),
        last_error="" if outcome is None or outcome.error is None else outcome.error.type,
    )


def schedule_text(schedule: Schedule | None) -> str:
    """Return a schedule in words, as "every 12 h" or "0 3 * * * in Europe/Berlin"; "" without one."""
    if schedule is None:
        return ""
    overlap = "" if schedule.overlap == "queue" else f", {schedule.overlap}"
    if isinstance(schedule.times, Every):
        return f"every {_length_text(schedule.times.length)}{overlap}"
    return f"{schedule.times.expression} in {schedule.times.tz}{overlap}"


def _length_text(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms % length == 0:
            return f"{ms // length:,} {unit}"
    return f"{ms:,} ms"
