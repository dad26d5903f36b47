"""The periodic tasks: schedules of the app, next runs in the storage, and the outcomes of last runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import frozen

from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.schedule import TICK_ID, Every, Schedule
from dibs.web.reading.source import Source, gather

#: Most queues in which the page looks for a schedule, besides those of tasks of the app.
MAX_QUEUES: Final = 500


@frozen
class PeriodicRow:
    """A periodic task. Times are ms since the epoch."""

    queue: str
    #: The schedule that the app declares; "" if it declares none.
    schedule: str
    paused: bool
    #: "waiting", "active", or "not stored" if no worker has stored the next run.
    state: str
    next_run: int | None
    #: Kind, time and duration in ms of the last run whose outcome is kept; "" and None without one.
    last_kind: str
    last_at: int | None
    last_ran: int | None
    last_error: str


@frozen
class PeriodicPage:
    """The periodic tasks of a storage, the next one first."""

    rows: tuple[PeriodicRow, ...]
    #: Number of queues in which the page looked, and the number of all queues.
    looked: int
    queues: int


async def read_periodic(source: Source, _params: Mapping[str, str]) -> PeriodicPage:
    """Return the tasks with a schedule in the app, and the queues with a stored tick."""
    storage = await source.storage()
    queues = await source.census.queues()
    declared = {
        name: handler.schedule
        for name, handler in source.app.handlers.items()
        if handler.schedule is not None
    }
    names = list(dict.fromkeys([*declared, *sorted(queues)]))[: MAX_QUEUES + len(declared)]

    async def read_one(name: str) -> tuple[str, Slot]:
        [slot] = await storage.get(name, [TICK_ID])
        return name, slot

    slots = await gather(names, read_one)
    rows = [
        _row(name, slot, declared.get(name), queues.get(name))
        for name, slot in slots
        if name in declared or slot.current is not None
    ]
    rows.sort(key=lambda row: (row.next_run is None, row.next_run or 0, row.queue))
    return PeriodicPage(tuple(rows), len(names), len({*names, *queues}))


def _row(queue: str, slot: Slot, schedule: Schedule | None, settings: Settings | None) -> PeriodicRow:
    job, outcome = slot.current, slot.outcome
    next_run = None if job is None or job.run is not None else job.run_at
    if slot.successor is not None:
        next_run = slot.successor.run_at
    return PeriodicRow(
        queue=queue,
        schedule=schedule_text(schedule),
        paused=settings is not None and settings.paused,
        state="not stored" if job is None else "waiting" if job.run is None else "active",
        next_run=next_run,
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
    if isinstance(schedule.times, Every):
        return f"every {_length_text(schedule.times.length)}"
    return f"{schedule.times.expression} in {schedule.times.tz}"


def _length_text(ms: int) -> str:
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if ms % length == 0:
            return f"{ms // length:,} {unit}"
    return f"{ms:,} ms"
