"""The story of an id: what happened to it, from the events of its queue, and from its current job.

A log has no index of ids, so the scan reads it: first from the enqueue of the job to the end, and then from
the start to this enqueue. Each reading continues where the one before ended, and reads a bounded number of
events; the page shows how many. At the default level, a log has only the ends of runs: the enqueue and the
run of a job that has not ended come from the job.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Final

from attrs import define, evolve, field, frozen

from dibs.model.events import LogEvent
from dibs.model.job import Job
from dibs.storage.offsets import offset_before
from dibs.storage.protocol import LATEST, Storage
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
    enqueues: int = 1
    #: Time from the due time to the claim, and from the claim to the end; None if the run has no such time.
    waited: int | None = None
    ran: int | None = None
    error: ErrorView | None = None
    result: Shown | None = None


@frozen
class Story:
    """The events of an id that were found so far."""

    entries: tuple[StoryEntry, ...] = ()
    #: Number of events that the scan has read.
    read: int = 0
    #: True if the scan has read the whole log.
    is_complete: bool = False
    #: True if older events of the id were dropped from this story.
    is_cut: bool = False


@define(eq=False)
class LogPart:
    """A part of the log that a scan reads: from `offset` to `until`, or to the end of the log."""

    id: str
    offset: str | None
    until: str | None = None
    events: deque[LogEvent] = field(factory=lambda: deque(maxlen=MAX_KEPT))
    found: int = 0
    is_read: bool = False

    async def read_page(self, storage: Storage, queue: str) -> int:
        """Read the next events, and return their number."""
        page = await storage.events(queue, after=self.offset, limit=PAGE_SIZE)
        until = self.until
        read = [event for offset, event in page.events if until is None or offset <= until]
        found = [event for event in read if event.id == self.id]
        self.events.extend(found)
        self.found += len(found)
        self.offset = page.offset
        self.is_read = len(read) < PAGE_SIZE
        return len(read)


@define(eq=False)
class Scan:
    """The state of the scan for one id: the log since its enqueue, and the log before."""

    recent: LogPart
    earlier: LogPart
    read: int = 0

    @classmethod
    async def since(cls, storage: Storage, queue: str, id: str, time: int | None) -> Scan:
        """Return a scan that reads the events since a time (ms) first; without a time, all from the start."""
        begin = None
        if time is not None:
            newest = (await storage.events(queue, after=LATEST, limit=1)).offset
            begin = offset_before(time, newest)
        return cls(LogPart(id, begin), LogPart(id, None, begin, is_read=begin is None))


@define(eq=False)
class Stories:
    """The scans of the ids that pages have shown lately."""

    _scans: OrderedDict[tuple[str, str], Scan] = field(factory=OrderedDict, init=False)

    async def read(
        self,
        source: Source,
        storage: Storage,
        queue: str,
        id: str,
        *,
        since: int | None = None,
        seconds: float = MAX_SECONDS,
    ) -> Story:
        """Continue the scan for an id for up to `seconds`, and return the events that were found so far.

        The first reading of an id decides where its scan begins: at the time `since` in ms, or at the start.
        """
        if (scan := self._scans.get((queue, id))) is None:
            scan = self._scans[queue, id] = await Scan.since(storage, queue, id, since)
        self._scans.move_to_end((queue, id))
        if len(self._scans) > MAX_SCANS:
            self._scans.popitem(last=False)
        budget = Budget(MAX_EVENTS, seconds)
        # Events arrive at the end of the log, so each reading begins there.
        scan.recent.is_read = False
        for part in (scan.recent, scan.earlier):
            while not part.is_read and not budget.is_spent:
                budget.read += await part.read_page(storage, queue)
        scan.read += budget.read
        return _to_story(source, queue, scan)


def with_present(story: Story, job: Job) -> Story:
    """Return a story of ends of runs, and in it the enqueue of the current job and what it does now."""
    run = job.run
    if run is None:
        now = StoryEntry("waiting", job.run_at, job.attempts, "")
    else:
        waited = max(0, run.claimed_at - max(job.run_at, job.enqueued_at))
        now = StoryEntry("active", run.claimed_at, job.attempts, run.holder, waited=waited)
    enqueue = StoryEntry("queued", job.enqueued_at, 0, "", enqueues=job.enqueues)
    place = sum(entry.at >= job.enqueued_at for entry in story.entries)
    entries = (now, *story.entries[:place], enqueue, *story.entries[place:])
    return evolve(story, entries=entries)


def _to_story(source: Source, queue: str, scan: Scan) -> Story:
    is_complete = scan.recent.is_read and scan.earlier.is_read
    events = [*scan.earlier.events, *scan.recent.events][-MAX_KEPT:]
    return Story(
        entries=tuple(_entry(source, queue, event) for event in reversed(events)),
        # Events of other ids change this all the time, and a complete scan has no use for it.
        read=0 if is_complete else scan.read,
        is_complete=is_complete,
        is_cut=scan.earlier.found + scan.recent.found > MAX_KEPT,
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
