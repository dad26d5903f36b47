"""The page of a queue: counts, settings, the oldest job, and its jobs in one state.

No verb reads the first job in the order of claims, and a listing has no order. So the page reads some waiting
jobs: all of them in a queue with few, and otherwise a part, which shows a least age.

A page says how many entries the scan has read, and continues with the next ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

import msgspec
from attrs import frozen
from msgspec import UNSET

from dibs.client.options.queue_settings import format_rate
from dibs.doctor.facts import Facts
from dibs.model.events import LogEvent
from dibs.model.job import DEFAULT_RETENTION, Slot
from dibs.model.requests import Settings, StartRate
from dibs.model.results import Counts, State
from dibs.model.schedule import TICK_ID
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import hidden_message
from dibs.web.reading.failures import FailureGroup, RetriedError, failures_of_queue, read_retried
from dibs.web.reading.job import arguments_text
from dibs.web.reading.overview import RECORDS_AGE, Activity, Rates
from dibs.web.reading.periodic import schedule_text
from dibs.web.reading.recent import Recent, RecentChart, wanted_hours
from dibs.web.reading.source import MAX_CHARACTERS, Budget, Shown, Source, to_shown

#: What becomes of a new job at max_waiting.
WHEN_FULL_TEXTS: Final = {"refuse": "refuse new jobs", "drop_new": "drop new jobs"}

#: The most shares of keys that the page lists.
MOST_SHARES: Final = 20


def form_values(settings: Settings) -> Mapping[str, str]:
    """Return the settings that a reader may change by name, as the form writes them; "" is no limit."""
    return {
        "max_active": "" if settings.max_active is None else str(settings.max_active),
        "per_key": "" if settings.per_key is None else str(settings.per_key),
        "rate": "" if settings.rate is None else format_rate(settings.rate),
        "key_rate": "" if settings.key_rate is None else format_rate(settings.key_rate),
        "max_waiting": "" if settings.max_waiting is None else str(settings.max_waiting),
        "when_full": settings.when_full,
        "fair": "yes" if settings.fair else "no",
        "log_level": settings.log_level,
    }


def setting_rows(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings of a queue that the page lists, as names and texts."""
    for name in ("max_active", "per_key"):
        number = getattr(settings, name)
        yield name, "no limit" if number is None else f"{number:,}"
    for name in ("rate", "key_rate"):
        yield name, _rate_text(getattr(settings, name))
    if settings.max_waiting is not None:
        yield "max_waiting", f"{settings.max_waiting:,}, then {WHEN_FULL_TEXTS[settings.when_full]}"
    if settings.fair:
        yield "fair", "keys take turns"
    if settings.shares:
        yield "shares", _shares_text(settings.shares)
    for kind in ("completed", "failed", "cancelled"):
        age = getattr(settings.retention, kind)
        yield f"keeps {kind}", _age_text(getattr(DEFAULT_RETENTION, kind) if age is UNSET else age)
    yield "log_level", settings.log_level
    yield "log_age", _age_text(settings.log_age)
    yield "failure handler", "yes" if settings.fail_handler else "no"


def _shares_text(shares: Mapping[str, int]) -> str:
    """Return the shares of keys as a text such as "acme 3, old paused"."""
    shown = [f"{key} {share:,}" if share else f"{key} paused" for key, share in shares.items()]
    more = len(shown) - MOST_SHARES
    return ", ".join(shown[:MOST_SHARES]) + (f", and {more:,} more" if more > 0 else "")


def _rate_text(rate: StartRate | None) -> str:
    if rate is None:
        return "no limit"
    burst = f", burst {rate.burst:,}" if rate.burst > 1 else ""
    return f"{rate.starts:,} in {_age_text(rate.per)}{burst}"


def _age_text(ms: int | None) -> str:
    if ms is None:
        return "for ever"
    parts, rest = [], ms
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        if count := rest // length:
            parts.append(f"{count:,} {unit}")
        rest %= length
    return " ".join(parts) or "0 s"


#: Waiting jobs that are read. Each comes with its payload, up to 1 MiB.
MAX_READ: Final = 25
#: Ms by which the clock of the storage may be ahead.
TOLERANCE: Final = 1000


@frozen
class Oldest:
    """The earliest due time of the waiting jobs that were read, in ms since the epoch."""

    run_at: int
    #: True if all waiting jobs were read.
    is_exact: bool


async def read_oldest(storage: Storage, queue: str, counts: Counts) -> Oldest | None:
    """Return the oldest of up to MAX_READ waiting jobs; None if no job is due."""
    if counts.waiting <= counts.scheduled:
        return None
    page = await storage.list(queue, "waiting", limit=MAX_READ)
    times = [max(job.run_at, job.enqueued_at) for _, slot in page.items if (job := slot.current) is not None]
    # Scheduled jobs wait, too. Clocks may differ by a little.
    due = [at for at in times if at <= time.time() * 1000 + TOLERANCE]
    return Oldest(min(due), page.after is None) if due else None


#: Bounds of a scan for one page: entries and seconds.
MAX_SCANNED: Final = 2_000
MAX_SECONDS: Final = 0.5
#: Entries that one call reads. Each comes with its payload, up to 1 MiB.
SCAN_PAGE_SIZE: Final = 100


@frozen
class Filter:
    """The jobs that a reader looks for. Empty texts select all jobs."""

    #: Beginning of the id.
    prefix: str = ""
    #: Name of an attribute, and its value as text; an empty value selects all jobs with the attribute.
    attribute: str = ""
    value: str = ""
    #: A part of the arguments or of the error, in letters of any case.
    text: str = ""

    @classmethod
    def from_params(cls, params: Mapping[str, str]) -> Filter:
        """Return the filter of an address; `attr` is "name" or "name=value"."""
        name, _, value = params.get("attr", "").partition("=")
        return cls(params.get("prefix", ""), name.strip(), value.strip(), params.get("part", "").strip())

    @property
    def is_empty(self) -> bool:
        return not (self.prefix or self.attribute or self.text)

    def selects(self, source: Source, queue: str, id: str, slot: Slot, state: State) -> bool:
        """Return whether a listed id is selected. Values are compared as a page shows them.

        So a value that the redaction hook hides cannot be found by a guess.
        """
        return (
            id.startswith(self.prefix)
            and (not self.text or self._finds_text(source, queue, slot, state))
            and (not self.attribute or self._finds_attribute(source, queue, slot, state))
        )

    def _finds_text(self, source: Source, queue: str, slot: Slot, state: State) -> bool:
        row = job_row(source, queue, "", slot, state, MAX_CHARACTERS)
        shown = f"{row.arguments}\n{row.error_type}: {row.message}"
        return self.text.casefold() in shown.casefold()

    def _finds_attribute(self, source: Source, queue: str, slot: Slot, state: State) -> bool:
        stored = attributes_of(slot, state)
        if self.attribute not in stored:
            return False
        shown = source.hide(
            queue, "attributes", {name: msgspec.json.decode(raw) for name, raw in stored.items()}
        )
        if isinstance(shown, Shown) or not isinstance(shown, Mapping) or self.attribute not in shown:
            return False
        return self.value in ("", _text(shown[self.attribute]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else to_shown(value).text


def attributes_of(slot: Slot, state: State) -> Mapping[str, bytes]:
    """Return the attributes of the part of an id that a listing of `state` is about."""
    if state == "blocked":
        return {} if slot.successor is None else slot.successor.data.attributes
    if state in ("completed", "failed", "cancelled"):
        return {} if slot.outcome is None else slot.outcome.kept_attributes
    return {} if slot.current is None else slot.current.data.attributes


@frozen
class Found:
    """The selected jobs of one page."""

    items: Sequence[tuple[str, Slot]]
    #: Cursor of the next page; None at the end of the listing.
    after: str | None
    #: Number of entries that were read.
    read: int


async def find_jobs(
    source: Source, queue: str, state: State, after: str | None, *, wanted: Filter, limit: int
) -> Found:
    """Return at least `limit` selected jobs after the cursor `after`, if the scan finds so many."""
    storage = await source.storage()
    budget, found = Budget(MAX_SCANNED, MAX_SECONDS), list[tuple[str, Slot]]()
    while True:
        # A page of a storage may be short, also without a filter.
        size = limit - len(found) if wanted.is_empty else SCAN_PAGE_SIZE
        page = await budget.list(storage, queue, state, after=after, limit=size)
        found += [(id, slot) for id, slot in page.items if wanted.selects(source, queue, id, slot, state)]
        after = page.after
        if after is None or len(found) >= limit or budget.is_spent:
            return Found(found, after, budget.read)


#: Jobs on one page. A page reads them with their payloads, each up to 1 MiB.
PAGE_SIZE: Final = 25
#: Letters of the arguments that a list shows.
MAX_ARGUMENTS: Final = 120
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
    #: The arguments in one line, cut; "" if none are stored.
    arguments: str = ""
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
    #: The ends of runs in the last hours; None if the log is off.
    recent: RecentChart | None
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
    #: The errors for which jobs are retried now.
    retried: tuple[RetriedError, ...]
    #: True if jobs are due and no worker that lives claims them.
    is_unserved: bool
    #: The settings that the form of the page changes, as it writes them.
    form: Mapping[str, str]


async def read_queue(
    source: Source, activity: Activity, recent: Recent, params: Mapping[str, str]
) -> QueuePage:
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
        recent=None
        if settings.log_level == "off"
        else await recent.read(storage, name, wanted_hours(params)),
        has_task=handler is not None,
        wanted=wanted,
        scanned=0 if wanted.is_empty else page.read,
        oldest=await read_oldest(storage, name, counts),
        failures=groups[0],
        grouped=groups[1],
        retried=await read_retried(source, {name: counts}),
        is_unserved=Facts({}, {}, await source.workers.answer(RECORDS_AGE)).is_unserved(
            name, settings, counts
        ),
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


def job_row(
    source: Source, queue: str, id: str, slot: Slot, state: State, most: int = MAX_ARGUMENTS
) -> JobRow:
    """Return the part of an id that a listing of `state` is about, with up to `most` letters of arguments."""
    job, successor, outcome = slot.current, slot.successor, slot.outcome
    if state == "blocked" and successor is not None:
        return JobRow(
            id,
            enqueued_at=successor.enqueued_at,
            run_at=successor.run_at if successor.creates else None,
            priority=successor.data.priority,
            key=successor.data.key,
            arguments=arguments_text(source, queue, successor.data if successor.creates else None, most),
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
            arguments=arguments_text(source, queue, outcome.data, most),
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
        arguments=arguments_text(source, queue, job.data, most),
        progress=source.show_json(queue, "progress", run.progress) if run and run.progress else None,
        cancel_requested=run is not None and run.cancel_requested,
    )
