"""The recent activity of queues: runs that ended, times that they took, and samples for sparklines.

The dashboard reads the end of each log that a page shows. It keeps the results in memory, so all viewers of a
process share them, and they begin with the first view.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Final

from attrs import define, field, frozen

from dibs.model.events import LogEvent
from dibs.model.results import Counts
from dibs.storage.protocol import LATEST, Storage
from dibs.web.reading.source import gather

#: Most events that one reading takes from the log of a queue.
PAGE_SIZE: Final = 500
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
        page = await storage.events(name, after=state.offset or LATEST, limit=PAGE_SIZE)
        events = [event for _, event in page.events] if state.offset is not None else []
        ended = sum(event.kind in ENDS for event in events)
        failed = sum(event.kind == "failed" for event in events)
        factor = 1.0
        offset = page.offset
        state.is_estimate = len(events) == PAGE_SIZE
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
