"""The chart of the last hours of a queue: how many runs ended in each part of the time, from its log.

An offset is made of the beginning of each part, and up to four pages of events are read from there. A part
with more events has an estimate. So a reading has a bound, however long the log is, and needs no warehouse.
The parts that are over are read once.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field, frozen

from dibs.model.events import EventKind, LogEvent
from dibs.storage.offsets import number_time, offset_before
from dibs.storage.protocol import LATEST, Storage
from dibs.web.reading.source import Budget

#: Parts of the chart, and the hours that a reader may choose.
PARTS: Final = 48
HOURS: Final = (1, 6, 24)
#: Events that one call reads, and the bounds of one reading.
PAGE_SIZE: Final = 500
MAX_EVENTS: Final = 10_000
MAX_SECONDS: Final = 0.3
#: Calls for one part.
MAX_CALLS: Final = 4
#: Most queues whose parts are remembered.
MAX_QUEUES: Final = 100
#: Milliseconds after its end in which a part may get events yet: of open transactions, and by other clocks.
SETTLED: Final = 60_000
#: Kind of event -> its tone in the chart.
TONES: Final[Mapping[EventKind, str]] = {
    "completed": "ok",
    "failed": "bad",
    "retried": "care",
    "timed_out": "care",
    "stalled": "care",
    "cancelled": "idle",
}
NO_ENDS: Final[Mapping[str, float]] = dict.fromkeys(("ok", "idle", "care", "bad"), 0)


@frozen
class TimePart:
    """The ends of runs in a part of the time. Times are ms since the epoch."""

    begin: int
    #: Tone -> number of ends: ok (completed), bad (failed), care (it runs again), idle (cancelled).
    #: None if the part was not read yet.
    ends: Mapping[str, float] | None
    #: True if the part had more events than were read.
    is_estimate: bool = False

    @property
    def total(self) -> float:
        return sum((self.ends or NO_ENDS).values())


@frozen
class RecentChart:
    """The parts of the last hours, the oldest first, and the length of each in ms."""

    hours: int
    length: int
    parts: tuple[TimePart, ...]

    @property
    def most(self) -> float:
        return max((part.total for part in self.parts), default=0)

    @property
    def is_estimate(self) -> bool:
        return any(part.is_estimate for part in self.parts)

    @property
    def is_complete(self) -> bool:
        return all(part.ends is not None for part in self.parts)

    def sum(self, tone: str) -> float:
        """Return the number of ends of a tone."""
        return sum((part.ends or NO_ENDS)[tone] for part in self.parts)


def wanted_hours(params: Mapping[str, str]) -> int:
    """Return the hours that an address asks for; 6 if it asks for none of HOURS."""
    return next((hours for hours in HOURS if params.get("hours") == str(hours)), HOURS[1])


@define(eq=False)
class Recent:
    """The parts of the queues that pages have shown lately."""

    _parts: OrderedDict[tuple[str, int], dict[int, TimePart]] = field(factory=OrderedDict, init=False)

    async def read(self, storage: Storage, queue: str, hours: int) -> RecentChart:
        """Read the newest part again and some parts that are not known, and return the chart."""
        length = hours * 3_600_000 // PARTS
        now = int(time.time() * 1000)
        begins = [now - now % length - back * length for back in range(PARTS)]
        known = self._parts.setdefault((queue, hours), {})
        self._parts.move_to_end((queue, hours))
        if len(self._parts) > MAX_QUEUES:
            self._parts.popitem(last=False)
        found = dict[int, TimePart]()
        newest = (await storage.events(queue, after=LATEST, limit=1)).offset
        budget = Budget(MAX_EVENTS, MAX_SECONDS)
        for begin in begins:
            if (part := known.get(begin)) is None and not budget.is_spent:
                part = await _read_part(storage, queue, begin, begin + length, newest, budget)
            found[begin] = part or TimePart(begin, None)
        known.clear()
        known.update(
            (begin, part)
            for begin, part in found.items()
            if part.ends is not None and begin + length < now - SETTLED
        )
        return RecentChart(hours, length, tuple(found[begin] for begin in reversed(begins)))


async def _read_part(
    storage: Storage, queue: str, begin: int, end: int, newest: str, budget: Budget
) -> TimePart:
    after, ahead, is_whole = offset_before(begin, newest), 0, False
    events = list[LogEvent]()
    for _ in range(MAX_CALLS):
        if after is None:
            return TimePart(begin, NO_ENDS if newest == "" else None)
        page = await storage.events(queue, after=after, limit=PAGE_SIZE)
        budget.read += len(page.events)
        events += [event for _, event in page.events]
        is_whole = len(page.events) < PAGE_SIZE or events[-1].at >= end
        if is_whole:
            break
        after = page.offset
        if events[-1].at < begin:
            # The numbers are ahead of the times, as after a failover: look so much later.
            offset, event = page.events[0]
            ahead += max(1, number_time(offset) - event.at - ahead)
            after = offset_before(begin + ahead, newest)
    return _count(events, begin, end, is_whole=is_whole)


def _count(events: Sequence[LogEvent], begin: int, end: int, *, is_whole: bool) -> TimePart:
    """Count the events in a part. Those that were not read are taken to be as frequent as those that were."""
    inside = [event for event in events if begin <= event.at < end]
    counts = Counter(TONES[event.kind] for event in inside if event.kind in TONES)
    if is_whole:
        return TimePart(begin, {tone: counts[tone] for tone in NO_ENDS})
    if not inside:
        return TimePart(begin, None)
    first, last = inside[0].at, inside[-1].at
    factor = max(1.0, (min(end, time.time() * 1000) - first) / max(1, last - first))
    return TimePart(begin, {tone: counts[tone] * factor for tone in NO_ENDS}, is_estimate=True)
