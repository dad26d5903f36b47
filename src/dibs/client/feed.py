"""`queue.events()`: iterate over the events of a queue.

A feed reads the stored log from an offset, or it is live: then it has new events only, and the progress that
handlers report.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

import msgspec
from msgspec import Struct

from dibs.client.connection.outcome_wait import RepeatedWaits, abandon_wakeup, find_report
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import check_list, utc_datetime, utc_datetime_or_none
from dibs.client.status import decode_or_raw
from dibs.errors import Refused
from dibs.model.events import AttemptKind, EventKind, LogEvent, NoteKind
from dibs.model.job import EndKind, Error, Job, Outcome, Slot
from dibs.model.requests import LogLevel, Settings
from dibs.model.results import EventPage, WaitResult
from dibs.storage.protocol import LATEST, Storage

if TYPE_CHECKING:
    from dibs.client.sync.claim import BlockingFeed

#: Most events that one read of the log returns.
PAGE_SIZE = 500
#: Most jobs whose progress a live feed reads if it does not know which of them reported.
MAX_FOLLOWED = 100
#: Most runs whose latest progress a live feed remembers, so that it returns no value twice.
MAX_REMEMBERED = 1000

#: Most characters of an offset (contract 3, Events).
LONGEST_OFFSET = 64

#: Kinds for `queue.events(kinds=...)`. Events of kind `fell_off` are always part of a feed.
FeedKind = EventKind | Literal["progress"]
#: Log level of a queue -> the kinds of events that its log keeps.
_KINDS_BY_LEVEL: Final[dict[LogLevel, frozenset[str]]] = {
    "off": frozenset(),
    "runs": frozenset(get_args(AttemptKind)),
    "all": frozenset({*get_args(AttemptKind), *get_args(NoteKind)}),
}
#: The kinds of events whose run leaves an outcome.
_ENDS: Final = frozenset(get_args(EndKind))
_ALL_KINDS: Final = {"progress", *_KINDS_BY_LEVEL["all"]}


class Event(Struct, frozen=True, kw_only=True):
    """An event of a queue. Times are in UTC; a field that does not apply is None, 0 or empty."""

    kind: EventKind | Literal["progress", "fell_off"]
    """Kind of the event (contract 3, Events).

    A live feed also has `progress`. `fell_off` means that events were trimmed from the log between the
    requested offset and the next event.
    """
    offset: str = ""
    """Position in the log: `queue.events(offset)` continues after this event. Empty for `progress`."""
    queue: str
    """Name of the queue."""
    id: str = ""
    """Id of the job."""
    at: datetime | None = None
    """Time of the event."""
    attempt: int = 0
    """Number of the claim of the job, from 1."""
    fence: int = 0
    """Number of the run, which grows with each claim of the id."""
    enqueued_at: datetime | None = None
    """Time at which the job was enqueued."""
    run_at: datetime | None = None
    """Time from which the job might start."""
    claimed_at: datetime | None = None
    """Time at which the run was claimed."""
    finished_at: datetime | None = None
    """Time at which the run ended."""
    holder: str = ""
    """Name of the worker that ran the job."""
    first: int = 0
    """Number of the first enqueue that the event is about, in the order of all enqueues of the id."""
    revision: int = 0
    """Number of the last enqueue that the event is about: `ticket.revision` of that enqueue."""
    enqueues: int = 0
    """Number of enqueues in the job of the event: later enqueues of an id may update a waiting job."""
    error: Error | None = None
    """Error of the run, or the reason of a cancellation."""
    result: Any = None
    """Result of a completed run, decoded by the queue's serde; None unless the setting `log_results` of the
    queue allows its size."""
    progress: Any = None
    """Progress that the run reported; only with the kind `progress`. Of several reports in a row, the feed
    may show only the last."""


class Feed:
    """The events of one queue in order: `async with queue.events() as events: async for event in events:`.

    The iteration waits for new events and never ends.
    """

    def __init__(
        self,
        client: QueueClient,
        after: str | None,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> None:
        _check_offset(after)
        self._client = client
        self._ids = None if ids is None else _check_names("ids", ids)
        self._kinds = (
            None if kinds is None else _check_kinds(_check_names("kinds", kinds), is_live=after is None)
        )
        self._shows_progress = after is None and (self._kinds is None or "progress" in self._kinds)
        self._offset = self._read_to = LATEST if after is None else after
        self._buffer: deque[Event] = deque()
        self._wakeups = RepeatedWaits(client.name, "events")
        self._reports = RepeatedWaits(client.name, "progress", self._followed_ids())
        #: True if the log may have events after `_read_to`.
        self._log_is_due = True
        #: The ids whose progress may have changed; None if any may have changed.
        self._reported: Collection[str] | None = None if self._shows_progress else ()
        #: The latest progress of each run that reported, by id and fence: jobs may share a fence.
        self._progress: dict[tuple[str, int], bytes] = {}

    def __repr__(self) -> str:
        return f"<Feed {self._client.label} after {self._offset!r}>"

    @property
    def offset(self) -> str:
        """Offset of the latest event that the iteration returned: pass it to `queue.events` to continue."""
        return self._offset

    @property
    def sync(self) -> BlockingFeed:
        """This feed with blocking methods, for code without an event loop."""
        from dibs.client.sync.claim import BlockingFeed  # noqa: PLC0415 - async programs never load it

        return BlockingFeed(self)

    async def __aenter__(self) -> Self:
        """Start the feed. Raises Refused for kinds that the queue's `log_level` leaves out."""
        storage = await self._client.storage()
        if self._kinds is not None:
            await self._check_log_level(storage, self._kinds)
        if self._offset == LATEST:
            # Fix the beginning of the feed now. The program may read the first event much later, and gets
            # all events since this moment.
            self._offset = (await storage.events(self._client.name, after=LATEST, limit=1)).offset
            self._read_to = self._offset
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.clear()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        """Wait for the next event and return it."""
        while not self._buffer:
            storage = await self._client.storage()
            # The token of the log's current position, so that the wait ends if an event comes after the read.
            await self._wakeups.begin(storage)
            if self._shows_progress:
                await self._reports.begin(storage)
            page = await self._read_log(storage) if self._log_is_due else None
            if self._reported is None or self._reported:
                await self._read_progress(storage, self._ended_runs(page))
            # After the progress, so that the last progress of a run comes before its end.
            if page is not None:
                self._buffer_page(page)
            if not self._buffer and not self._log_is_due:
                await self._wait_for_change(storage)
        event = self._buffer.popleft()
        self._offset = event.offset or self._offset
        return event

    async def _check_log_level(self, storage: Storage, kinds: frozenset[str]) -> None:
        name = self._client.name
        settings = {info.name: info.settings for info in await storage.queues()}.get(name, Settings())
        if missing := kinds - _KINDS_BY_LEVEL[settings.log_level] - {"progress"}:
            level = "runs" if missing <= _KINDS_BY_LEVEL["runs"] else "all"
            raise Refused(
                f"queue {name!r} logs at level {settings.log_level!r}, which leaves out "
                f"{', '.join(sorted(missing))}; first await queue.configure(log_level={level!r})",
                field="kinds",
            )

    async def _read_log(self, storage: Storage) -> EventPage:
        page = await storage.events(self._client.name, after=self._read_to, limit=PAGE_SIZE)
        self._read_to = page.offset
        self._log_is_due = bool(page.events)
        return page

    def _buffer_page(self, page: EventPage) -> None:
        name = self._client.name
        wanted = [
            event_from_log(self._client, offset, event)
            for offset, event in page.events
            if self._is_wanted(event)
        ]
        if page.fell_off:
            self._buffer.append(Event(kind="fell_off", offset="" if wanted else page.offset, queue=name))
        self._buffer.extend(wanted)
        if not self._buffer:
            # `ids` or `kinds` excluded all events of the page, so the next read starts behind them.
            self._offset = page.offset

    def _is_wanted(self, event: LogEvent) -> bool:
        return (self._kinds is None or event.kind in self._kinds) and (
            self._ids is None or event.id in self._ids
        )

    def _followed_ids(self) -> list[str]:
        """Return the ids whose events wake this feed; an empty list means each id of the queue, as for a feed
        that names no ids or more than MAX_FOLLOWED.
        """
        return [] if self._ids is None or len(self._ids) > MAX_FOLLOWED else sorted(self._ids)

    async def _wait_for_change(self, storage: Storage) -> None:
        """Wait for an event, for a report of progress, or for the slow poll, and set what to read next."""
        events = asyncio.ensure_future(self._wakeups.next(storage))
        reports = asyncio.ensure_future(self._reports.next(storage)) if self._shows_progress else None
        try:
            await asyncio.wait(
                [events] if reports is None else [events, reports], return_when=asyncio.FIRST_COMPLETED
            )
            if events.done():
                events.result()
                self._log_is_due = True
            if reports is not None and reports.done():
                self._reported = self._reported_ids(storage, reports.result())
        finally:
            abandon_wakeup(events)
            if reports is not None:
                abandon_wakeup(reports)

    def _reported_ids(self, storage: Storage, wakeup: WaitResult | None) -> Collection[str] | None:
        """Return the ids whose progress to read after a wait; None if any may have changed."""
        if wakeup is None or (wakeup.woken and wakeup.reported is None):
            return None
        if not wakeup.woken:
            return () if storage.capabilities.push_wakeups else None
        reported = wakeup.reported or frozenset()
        return reported if self._ids is None else reported & self._ids

    async def _read_progress(self, storage: Storage, ended: Mapping[str, int]) -> None:
        """Add an event for each run whose progress has changed since the last call.

        The log has no events of progress, so the feed reads it from the jobs that reported, and from their
        outcomes if they have ended. If it is unknown which jobs reported, it reads those of `ids`, or all
        active jobs, and the outcomes of the runs that `ended`: their ids and fences.
        """
        reported, self._reported = self._reported, ()
        if reported:
            for id, slot in await self._read_slots(storage, reported):
                self._add_progress(id, _reporting_part(slot))
            return
        if self._ids is None:
            jobs: Iterable[tuple[str, Slot]] = (
                await storage.list(self._client.name, "active", limit=MAX_FOLLOWED)
            ).items
        else:
            jobs = await self._read_slots(storage, self._ids)
        for id, slot in jobs:
            self._add_progress(id, slot.current)
        for id, slot in await self._read_slots(storage, ended):
            if slot.outcome is not None and slot.outcome.fence == ended[id]:
                self._add_progress(id, slot.outcome)

    def _ended_runs(self, page: EventPage | None) -> dict[str, int]:
        """Return the id and the fence of each run that ended in a page of the log."""
        events = [] if page is None else [event for _, event in page.events if event.kind in _ENDS]
        return {event.id: event.fence for event in events if self._ids is None or event.id in self._ids}

    async def _read_slots(self, storage: Storage, ids: Collection[str]) -> Iterable[tuple[str, Slot]]:
        wanted = sorted(ids)[:PAGE_SIZE]
        return zip(wanted, await storage.get(self._client.name, wanted) if wanted else (), strict=True)

    def _add_progress(self, id: str, part: Job | Outcome | None) -> None:
        report = find_report(part)
        if report is None or self._progress.get((id, report[0])) == report[1]:
            return
        self._remember_progress((id, report[0]), report[1])
        value = msgspec.json.decode(report[1])
        self._buffer.append(
            Event(kind="progress", queue=self._client.name, id=id, fence=report[0], progress=value)
        )

    def _remember_progress(self, run: tuple[str, int], progress: bytes) -> None:
        self._progress.pop(run, None)
        self._progress[run] = progress
        if len(self._progress) > MAX_REMEMBERED:
            # A dict keeps the order of insertion, so its first key has reported longest ago.
            del self._progress[next(iter(self._progress))]


def _reporting_part(slot: Slot) -> Job | Outcome | None:
    """Return the part of an id whose run reported: the outcome if the current job has had no other run."""
    job = slot.current
    if job is None or (job.attempts == (job.run is not None) and find_report(job) is None):
        return slot.outcome
    return job


def _check_offset(after: object) -> None:
    """Raise Refused for a value that is no offset of any storage. The storage checks the text itself."""
    if after is not None and not (isinstance(after, str) and len(after) <= LONGEST_OFFSET):
        raise Refused(
            f"after is {after!r:.80}; pass the offset of an event, '' for the oldest event, or None",
            field="after",
        )


def _check_names(field: str, names: Iterable[str]) -> frozenset[str]:
    if isinstance(names, str):
        # A str is an iterable of characters, so the feed would wait for events of one-letter names.
        raise Refused(f"{field} is the text {names!r}; pass a list", field=field)
    check_list(field, names)
    return frozenset(names)


def _check_kinds(kinds: frozenset[str], *, is_live: bool) -> frozenset[str]:
    if unknown := kinds - _ALL_KINDS:
        named, known = ", ".join(sorted(unknown)), ", ".join(sorted(_ALL_KINDS))
        raise Refused(f"unknown kinds of events: {named}; the kinds are {known}", field="kinds")
    if "progress" in kinds and not is_live:
        raise Refused(
            "kinds contains 'progress', which the log does not store; leave `after` out to get it live",
            field="kinds",
        )
    return kinds


def event_from_log(client: QueueClient, offset: str, event: LogEvent) -> Event:
    """Convert an entry of the storage's log, with times in ms, to an Event with datetimes."""
    return Event(
        kind=event.kind,
        offset=offset,
        queue=client.name,
        id=event.id,
        at=utc_datetime(event.at),
        attempt=event.attempt,
        fence=event.fence,
        enqueued_at=utc_datetime(event.enqueued_at) if event.enqueued_at else None,
        run_at=utc_datetime(event.run_at) if event.run_at else None,
        claimed_at=utc_datetime_or_none(event.claimed_at),
        finished_at=utc_datetime_or_none(event.finished_at),
        holder=event.holder,
        first=event.first,
        revision=event.revision,
        enqueues=event.enqueues,
        error=event.error,
        result=None if event.result is None else decode_or_raw(client, event.result),
    )
