"""The story of an id: what happened to it, from the events of its queue.

A log has no index of ids, so the scan reads it from the start. Each reading continues where the one before
ended, and reads a bounded number of events. The page shows how far the scan has come.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from attrs import define, field, frozen

from dibs.model.events import LogEvent
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import ErrorView, error_view
from dibs.web.reading.source import Budget, Shown, Source

#: Events that one call reads, and the bounds of one reading.
PAGE_SIZE: Final = 500
MAX_EVENTS: Final = 10_000
MAX_SECONDS: Final = 0.5
#: Most events that a story keeps; the oldest are dropped.
MAX_KEPT: Final = 200
#: Most characters of a result in a story.
MAX_RESULT: Final = 1_000
#: Most ids whose scans are remembered.
MAX_SCANS: Final = 100


@frozen
class StoryEntry:
    """An event of an id. Times are ms since the epoch, durations ms."""

    kind: str
    at: int
    attempt: int
    holder: str
    enqueues: int
    #: Time from the due time to the claim, and from the claim to the end; None if the run has no such time.
    waited: int | None
    ran: int | None
    error: ErrorView | None
    result: Shown | None


@frozen
class Story:
    """The events of an id that were found so far."""

    entries: tuple[StoryEntry, ...] = ()
    #: Number of events that the scan has read.
    read: int = 0
    #: Time of the last event that was read, or None.
    read_to: int | None = None
    #: True if the scan has reached the end of the log.
    is_complete: bool = False
    #: True if older events of the id were dropped from this story.
    is_cut: bool = False


@define(eq=False)
class Scan:
    """The state of the scan for one id."""

    offset: str | None = None
    events: deque[LogEvent] = field(factory=lambda: deque(maxlen=MAX_KEPT))
    read: int = 0
    read_to: int | None = None
    found: int = 0
    is_complete: bool = False


@define(eq=False)
class Stories:
    """The scans of the ids that pages have shown lately."""

    _scans: OrderedDict[tuple[str, str], Scan] = field(factory=OrderedDict, init=False)

    async def read(
        self, source: Source, storage: Storage, queue: str, id: str, seconds: float = MAX_SECONDS
    ) -> Story:
        """Continue the scan for an id for up to `seconds`, and return the events that were found so far."""
        scan = self._of(queue, id)
        budget = Budget(MAX_EVENTS, seconds)
        while not budget.is_spent:
            page = await storage.events(queue, after=scan.offset, limit=PAGE_SIZE)
            _learn(scan, [event for _, event in page.events], id)
            budget.read += len(page.events)
            scan.offset = page.offset
            scan.is_complete = len(page.events) < PAGE_SIZE
            if scan.is_complete:
                break
        return _to_story(source, queue, scan)

    def _of(self, queue: str, id: str) -> Scan:
        scan = self._scans.setdefault((queue, id), Scan())
        self._scans.move_to_end((queue, id))
        if len(self._scans) > MAX_SCANS:
            self._scans.popitem(last=False)
        return scan


def _learn(scan: Scan, events: list[LogEvent], id: str) -> None:
    found = [event for event in events if event.id == id]
    scan.events.extend(found)
    scan.found += len(found)
    scan.read += len(events)
    if events:
        scan.read_to = events[-1].at


def _to_story(source: Source, queue: str, scan: Scan) -> Story:
    return Story(
        entries=tuple(_entry(source, queue, event) for event in reversed(scan.events)),
        # Events of other ids change these two all the time, and a complete scan has no use for them.
        read=0 if scan.is_complete else scan.read,
        read_to=None if scan.is_complete else scan.read_to,
        is_complete=scan.is_complete,
        is_cut=scan.found > MAX_KEPT,
    )


def _entry(source: Source, queue: str, event: LogEvent) -> StoryEntry:
    waited = ran = None
    if event.claimed_at is not None:
        waited = max(0, event.claimed_at - max(event.run_at, event.enqueued_at))
        if event.finished_at is not None:
            ran = max(0, event.finished_at - event.claimed_at)
    result = None
    if event.result is not None:
        result = source.show(queue, "result", source.decode(queue, event.result), MAX_RESULT)
    return StoryEntry(
        kind=event.kind,
        at=event.at,
        attempt=event.attempt,
        holder=event.holder,
        enqueues=event.enqueues,
        waited=waited,
        ran=ran,
        error=error_view(source, queue, event.error, traceback=False),
        result=result,
    )
