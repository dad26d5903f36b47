"""The page of a queue: its states, settings, schedule, latest ends and a page of its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from attrs import frozen

from dibs.model.events import LogEvent
from dibs.model.job import Slot
from dibs.model.requests import Settings
from dibs.model.results import Counts, State
from dibs.model.schedule import TICK_ID
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import hidden_message
from dibs.web.reading.failures import FailureGroup, failures_of_queue
from dibs.web.reading.periodic import schedule_text
from dibs.web.reading.queues.activity import Activity, Rates
from dibs.web.reading.queues.oldest import Oldest, read_oldest
from dibs.web.reading.queues.scan import Filter, find_jobs
from dibs.web.reading.queues.settings import form_values, setting_rows
from dibs.web.reading.source import Shown, Source

#: Jobs on one page. A page reads them with their payloads, each up to 1 MiB.
PAGE_SIZE: Final = 25
STATES: Final[tuple[State, ...]] = get_args(State)
#: States in the order in which the page chooses one to list.
PREFERRED: Final[tuple[State, ...]] = ("active", "waiting", "failed", "completed", "cancelled")


@frozen
class JobRow:
    """A job in a list. Times are ms since the epoch; a field that does not apply is None or empty."""

    id: str
    enqueued_at: int | None = None
    run_at: int | None = None
    claimed_at: int | None = None
    ended_at: int | None = None
    attempts: int = 0
    holder: str = ""
    priority: int = 0
    key: str | None = None
    error_type: str = ""
    message: str = ""
    progress: Shown | None = None
    cancel_requested: bool = False


@frozen
class EndRow:
    """An end of a run, from the log."""

    id: str
    kind: str
    at: int
    ran: int | None
    error_type: str


@frozen
class QueuePage:
    """A queue, and a page of its jobs in one state."""

    name: str
    #: False if the storage does not know the queue.
    is_known: bool
    paused: bool
    counts: Counts
    rates: Rates
    settings: tuple[tuple[str, str], ...]
    max_active: int | None
    log_level: str
    #: The schedule of a periodic task, and the time of its next run; "" and None for other queues.
    schedule: str
    next_run: int | None
    state: State
    jobs: tuple[JobRow, ...]
    #: Cursor of the next page; None on the last one.
    after: str | None
    is_first: bool
    ends: tuple[EndRow, ...]
    #: True if the app declares a task or a handler for the queue.
    has_task: bool
    wanted: Filter
    #: Number of entries that the scan of a filter has read; 0 without a filter.
    scanned: int
    #: The waiting job with the earliest due time, of those that were read; None if none is due.
    oldest: Oldest | None
    #: Groups of failures, if the page lists failed jobs, and the number of failed jobs that were grouped.
    failures: tuple[FailureGroup, ...]
    grouped: int
    #: The settings that the form of the page changes, as it writes them.
    form: Mapping[str, str]


async def read_queue(source: Source, activity: Activity, params: Mapping[str, str]) -> QueuePage:
    """Return the page of the queue `name`. Raises Refused for a name or a cursor that is not allowed."""
    storage, name = await source.storage(), params.get("name", "")
    queues = await source.census.queues()
    settings = queues.get(name, Settings())
    counts = (await storage.counts([name]))[name]
    active = (await activity.read(storage, {name: counts}, is_only=True))[name]
    state, cursor = _choose_state(params.get("state", ""), counts), params.get("after") or None
    wanted = Filter.from_params(params)
    page = await find_jobs(source, name, state, cursor, wanted=wanted, limit=PAGE_SIZE)
    groups = await failures_of_queue(source, name) if state == "failed" else ((), 0)
    handler = source.app.handlers.get(name)
    schedule = None if handler is None else handler.schedule
    return QueuePage(
        name=name,
        is_known=name in queues,
        paused=settings.paused,
        counts=counts,
        rates=active.rates(),
        settings=tuple(setting_rows(settings)),
        max_active=settings.max_active,
        log_level=settings.log_level,
        schedule=schedule_text(schedule),
        next_run=await _next_run(storage, name),
        state=state,
        jobs=tuple(job_row(source, name, id, slot, state) for id, slot in page.items),
        after=page.after,
        is_first=cursor is None,
        ends=tuple(map(_end_row, reversed(active.ends))),
        has_task=handler is not None,
        wanted=wanted,
        scanned=0 if wanted.is_empty else page.read,
        oldest=await read_oldest(storage, name, counts),
        failures=groups[0],
        grouped=groups[1],
        form=form_values(settings),
    )


def _end_row(event: LogEvent) -> EndRow:
    ran = None if event.claimed_at is None else max(0, event.at - event.claimed_at)
    return EndRow(event.id, event.kind, event.at, ran, event.error.type if event.error else "")


def _choose_state(wanted: str, counts: Counts) -> State:
    if wanted in STATES:
        return wanted
    return next((state for state in PREFERRED if getattr(counts, state)), "waiting")


async def _next_run(storage: Storage, name: str) -> int | None:
    [slot] = await storage.get(name, [TICK_ID])
    tick = slot.current
    return None if tick is None or tick.run is not None else tick.run_at


def job_row(source: Source, queue: str, id: str, slot: Slot, state: State) -> JobRow:
    """Return the part of an id that a listing of `state` is about."""
    job, successor, outcome = slot.current, slot.successor, slot.outcome
    if state == "blocked" and successor is not None:
        return JobRow(
            id,
            enqueued_at=successor.enqueued_at,
            run_at=successor.run_at if successor.creates else None,
            priority=successor.data.priority,
            key=successor.data.key,
        )
    if state in ("completed", "failed", "cancelled") and outcome is not None:
        return JobRow(
            id,
            enqueued_at=outcome.enqueued_at,
            claimed_at=outcome.claimed_at,
            ended_at=outcome.ended_at,
            attempts=outcome.attempts,
            holder=outcome.holder,
            error_type=outcome.error.type if outcome.error else "",
            message=hidden_message(source, queue, outcome.error),
        )
    if job is None:
        return JobRow(id)
    run = job.run
    return JobRow(
        id,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        claimed_at=run.claimed_at if run else None,
        attempts=job.attempts,
        holder=run.holder if run else "",
        priority=job.data.priority,
        key=job.data.key,
        error_type=job.error.type if job.error else "",
        message=hidden_message(source, queue, job.error),
        progress=source.show_json(queue, "progress", run.progress) if run and run.progress else None,
        cancel_requested=run is not None and run.cancel_requested,
    )
