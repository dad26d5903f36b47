"""The overview: all queues with their counts and rates, and the rates that pages remember.

The dashboard reads the end of each log that a page shows. It keeps the results in memory, so all viewers of a
process share them, and they begin with the first view.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Final

from attrs import define, field, frozen

from dibs.doctor.facts import Facts
from dibs.model.events import LogEvent
from dibs.model.job import FAIL_SUFFIX
from dibs.model.results import Counts, QueueInfo
from dibs.storage.protocol import LATEST, Storage
from dibs.web.reading.source import Source, gather

#: Most events that one reading takes from the log of a queue.
EVENTS_A_READ: Final = 500
#: Samples of a sparkline.
MAX_SAMPLES: Final = 60
#: Ends that the page of a queue lists.
MAX_ENDS: Final = 20
#: Times of recent runs, from which the percentiles come.
MAX_RUNS: Final = 200
#: Most queues whose activity is remembered.
MAX_QUEUES: Final = 500
#: Seconds over which rates are averaged.
RATE_SECONDS: Final = 10.0
#: Seconds after which the log of a queue is read although its counts have not changed.
QUIET_SECONDS: Final = 10.0
#: Events that end a job. The other events of an attempt return it to the queue.
ENDS: Final = frozenset(("completed", "failed", "cancelled"))


@frozen
class Sample:
    """The numbers of one reading; `seconds` is the time since the reading before."""

    seconds: float
    #: Jobs that wait, run or are blocked.
    live: int
    ended: float
    failed: float
    #: Jobs that came in: the growth of `live`, and the jobs that ended.
    arrived: float


@frozen
class Rates:
    """The activity of a queue as a page shows it. Rates are jobs per second; None before two readings."""

    arrived: float | None = None
    ended: float | None = None
    failed: float | None = None
    #: True if the log grew faster than it was read, so the rate of ends is computed from its times.
    is_estimate: bool = False
    #: Milliseconds that 95 % of the recent runs waited from their due time to their claim.
    wait_p95: int | None = None
    #: Milliseconds that 95 % of the recent runs took.
    run_p95: int | None = None
    #: Number of live jobs in the latest readings, the oldest first.
    depths: tuple[int, ...] = ()
    #: Ends per second in the latest readings, the oldest first.
    speeds: tuple[float, ...] = ()


@define(eq=False)
class QueueActivity:
    """The state of one queue between two readings."""

    offset: str | None = None
    counts: Counts | None = None
    #: Times of the latest reading of counts and of the latest read of the log, on the monotonic clock.
    read_at: float = 0.0
    log_at: float = 0.0
    is_estimate: bool = False
    samples: deque[Sample] = field(factory=lambda: deque(maxlen=MAX_SAMPLES))
    ends: deque[LogEvent] = field(factory=lambda: deque(maxlen=MAX_ENDS))
    waits: deque[int] = field(factory=lambda: deque(maxlen=MAX_RUNS))
    runs: deque[int] = field(factory=lambda: deque(maxlen=MAX_RUNS))

    def is_quiet(self, counts: Counts, now: float) -> bool:
        if self.offset is None:
            return self.counts in (None, counts) and not counts.active
        return counts == self.counts and not counts.active and now - self.log_at < QUIET_SECONDS

    def add(self, counts: Counts, ended: float, failed: float, now: float) -> None:
        """Add a sample: the counts, and the jobs that ended since the last reading."""
        live = counts.waiting + counts.active + counts.blocked
        if self.counts is not None:
            before = self.counts.waiting + self.counts.active + self.counts.blocked
            arrived = max(0.0, live - before + ended)
            self.samples.append(Sample(max(now - self.read_at, 0.001), live, ended, failed, arrived))
        self.counts, self.read_at = counts, now

    def learn(self, events: Sequence[LogEvent]) -> None:
        """Remember the latest ends, and the times of the runs."""
        for event in events:
            if event.finished_at is None:
                continue
            self.ends.append(event)
            if event.claimed_at is not None:
                due = max(event.run_at, event.enqueued_at)
                self.waits.append(max(0, event.claimed_at - due))
                self.runs.append(max(0, event.finished_at - event.claimed_at))

    def rates(self) -> Rates:
        if not self.samples:
            return Rates(wait_p95=percentile(self.waits), run_p95=percentile(self.runs))
        recent, seconds = [], 0.0
        for sample in reversed(self.samples):
            recent.append(sample)
            seconds += sample.seconds
            if seconds >= RATE_SECONDS:
                break
        return Rates(
            arrived=sum(each.arrived for each in recent) / seconds,
            ended=sum(each.ended for each in recent) / seconds,
            failed=sum(each.failed for each in recent) / seconds,
            is_estimate=self.is_estimate,
            wait_p95=percentile(self.waits),
            run_p95=percentile(self.runs),
            depths=tuple(each.live for each in self.samples),
            speeds=tuple(each.ended / each.seconds for each in self.samples),
        )


@define(eq=False)
class Activity:
    """The activity of the queues that pages have shown."""

    _queues: OrderedDict[str, QueueActivity] = field(factory=OrderedDict, init=False)

    async def read(
        self, storage: Storage, counts: Mapping[str, Counts], *, is_only: bool = False
    ) -> dict[str, QueueActivity]:
        """Read the new events of queues whose counts were just read, and return their activity.

        On a page with many queues, the log of a queue without active jobs is read from its first change on.
        With `is_only`, the page is about this queue, and its log is read from now on.
        """

        async def one(name: str) -> tuple[str, QueueActivity]:
            return name, await self._read_queue(storage, name, counts[name], is_only=is_only)

        return dict(await gather(counts, one))

    async def _read_queue(
        self, storage: Storage, name: str, counts: Counts, *, is_only: bool
    ) -> QueueActivity:
        state, now = self._of(name), monotonic()
        if not (is_only and state.offset is None) and state.is_quiet(counts, now):
            state.add(counts, 0, 0, now)
            return state
        page = await storage.events(name, after=state.offset or LATEST, limit=EVENTS_A_READ)
        events = [event for _, event in page.events] if state.offset is not None else []
        ended = sum(event.kind in ENDS for event in events)
        failed = sum(event.kind == "failed" for event in events)
        factor = 1.0
        offset = page.offset
        state.is_estimate = len(events) == EVENTS_A_READ
        if state.is_estimate:
            # The log grows faster than one page per reading. Skip to its end, so that the page stays current.
            offset = (await storage.events(name, after=LATEST, limit=1)).offset
            factor = _skipped_factor(events, now - state.read_at)
        state.learn(events)
        state.offset, state.log_at = offset, now
        state.add(counts, ended * factor, failed * factor, now)
        return state

    def _of(self, name: str) -> QueueActivity:
        state = self._queues.setdefault(name, QueueActivity())
        self._queues.move_to_end(name)
        if len(self._queues) > MAX_QUEUES:
            self._queues.popitem(last=False)
        return state


def _skipped_factor(events: Sequence[LogEvent], seconds: float) -> float:
    """Return the number of events since the last reading, divided by the number that was read."""
    span = (events[-1].at - events[0].at) / 1000
    return max(1.0, seconds / span) if span > 0 else 1.0


def percentile(values: Sequence[int] | deque[int], share: float = 0.95) -> int | None:
    """Return the value that a share of the values does not exceed; None without values."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


#: Queues on one page.
PAGE_SIZE: Final = 50
#: Seconds for which the records of workers are shared.
RECORDS_AGE: Final = 5.0
STATES: Final = ("waiting", "scheduled", "retrying", "active", "blocked", "failed")


@frozen
class QueueRow:
    """A queue in the list of the overview."""

    name: str
    paused: bool
    max_active: int | None
    counts: Counts
    rates: Rates
    #: True for the queue of a failure handler, whose name ends in "!fail".
    is_fail_queue: bool
    #: True if jobs are due and no worker that lives claims them.
    is_unserved: bool


@frozen
class Overview:
    """The queues of a storage. The sums are those of all queues, not only of this page."""

    rows: tuple[QueueRow, ...]
    totals: Mapping[str, int]
    is_approximate: bool
    #: Sums of the rates of the queues on this page.
    rates: Rates
    paused: int
    #: Number of queues, of those that the filter selects, and the number of this page, from 1.
    queues: int
    #: Number of queues that the sums leave out, because no reading has counted them yet.
    uncounted: int
    selected: int
    page: int
    pages: int
    filter: str
    sort: str
    #: Number of workers that live, and of those that hold jobs.
    workers: int
    busy_workers: int


#: Name of an order -> the key by which the rows are sorted. The default order changes rarely, so that rows do
#: not jump while somebody reads them: queues with a job or an outcome come first, each part by name.
ORDERS: Final[dict[str, Callable[[QueueInfo, Counts], tuple[object, ...]]]] = {
    "name": lambda info, counts: (counts == Counts(), info.name),
    "active": lambda info, counts: (-counts.active, info.name),
    "waiting": lambda info, counts: (-counts.waiting, info.name),
    "failed": lambda info, counts: (-counts.failed, info.name),
}
DEFAULT_ORDER: Final = "name"
#: Stands for the counts of a queue that was not counted yet: such a queue is not taken for an empty one.
UNCOUNTED: Final = Counts(completed=1)


async def read_overview(source: Source, activity: Activity, params: Mapping[str, str]) -> Overview:
    """Return the overview. It counts the queues of this page and reads their logs."""
    storage = await source.storage()
    infos = [QueueInfo(name, settings) for name, settings in (await source.census.queues()).items()]
    wanted, order = params.get("filter", "").strip(), params.get("sort", DEFAULT_ORDER)
    sort, known = ORDERS.get(order, ORDERS[DEFAULT_ORDER]), source.census.known
    selected = [info for info in infos if wanted.lower() in info.name.lower()]
    selected.sort(key=lambda info: sort(info, known.get(info.name, UNCOUNTED)))
    pages = max(1, -(-len(selected) // PAGE_SIZE))
    page = min(_page_number(params), pages)
    shown = selected[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    counts = await source.census.counts([info.name for info in shown])
    active = await activity.read(storage, {info.name: counts.get(info.name, Counts()) for info in shown})
    workers = await source.workers.answer(RECORDS_AGE)
    facts = Facts({}, {}, workers)
    rows = tuple(
        _row(info, counts.get(info.name, Counts()), active[info.name].rates(), facts) for info in shown
    )
    return Overview(
        rows=rows,
        totals={state: sum(getattr(each, state) for each in counts.values()) for state in STATES},
        is_approximate=any(each.approximate for each in counts.values()),
        rates=_sum_rates(rows),
        paused=sum(info.settings.paused for info in infos),
        queues=len(infos),
        uncounted=source.census.uncounted,
        selected=len(selected),
        page=page,
        pages=pages,
        filter=wanted,
        sort=order if order in ORDERS else DEFAULT_ORDER,
        workers=len(workers),
        busy_workers=sum(worker.running > 0 for worker in workers),
    )


def _page_number(params: Mapping[str, str]) -> int:
    text = params.get("page", "1")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1


def _row(info: QueueInfo, counts: Counts, rates: Rates, facts: Facts) -> QueueRow:
    return QueueRow(
        info.name,
        info.settings.paused,
        info.settings.max_active,
        counts,
        rates,
        info.name.endswith(FAIL_SUFFIX),
        facts.is_unserved(info.name, info.settings, counts),
    )


def _sum_rates(rows: tuple[QueueRow, ...]) -> Rates:
    length = max((len(row.rates.speeds) for row in rows), default=0)
    speeds = [0.0] * length
    depths = [0] * length
    for row in rows:
        # The samples end at the same reading, so they are aligned at their ends.
        for index, (speed, depth) in enumerate(
            zip(reversed(row.rates.speeds), reversed(row.rates.depths), strict=True), 1
        ):
            speeds[-index] += speed
            depths[-index] += depth
    known = [row.rates for row in rows if row.rates.ended is not None]
    if not known:
        return Rates()
    return Rates(
        arrived=sum(each.arrived or 0 for each in known),
        ended=sum(each.ended or 0 for each in known),
        failed=sum(each.failed or 0 for each in known),
        is_estimate=any(each.is_estimate for each in known),
        depths=tuple(depths),
        speeds=tuple(speeds),
    )
