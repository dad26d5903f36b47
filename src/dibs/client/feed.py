"""The events of a queue, as people read them: the log from an offset, or the live feed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, get_args

import msgspec
from msgspec import Struct

from dibs.client.connection.outcome_wait import SLOW_POLL, abandon_hint
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.durations import utc_datetime, utc_datetime_or_none
from dibs.errors import Refused, StorageError
from dibs.model.events import AttemptKind, EventKind, NoteKind
from dibs.model.events import LogEvent as Logged
from dibs.model.job import Error, Slot
from dibs.model.requests import LogLevel, Settings
from dibs.model.results import EventPage
from dibs.storage.protocol import LATEST, Storage

if TYPE_CHECKING:
    from dibs.client.sync.claims import BlockingFeed

#: The most events one read of the log brings.
PAGE_SIZE = 500
#: The most active jobs whose progress the live feed follows.
MAX_FOLLOWED = 100

#: What a feed can be asked for; `fell_off` is told in any case.
FeedKind = EventKind | Literal["progress"]
_BY_LEVEL: Final[dict[LogLevel, frozenset[str]]] = {
    "off": frozenset(),
    "runs": frozenset(get_args(AttemptKind)),
    "all": frozenset({*get_args(AttemptKind), *get_args(NoteKind)}),
}
_KINDS: Final = {"progress", *_BY_LEVEL["all"]}


class Event(Struct, frozen=True, kw_only=True):
    """One thing that happened in a queue; what does not apply is None, 0 or empty. Times are in UTC."""

    #: Of contract 3, Events; also `progress` in the live feed, and `fell_off` where the log was trimmed
    #: between the offset that was asked for and the next event.
    kind: EventKind | Literal["progress", "fell_off"]
    #: Reading on after this event begins here. Empty for progress, which is not in the log.
    offset: str = ""
    queue: str
    id: str = ""
    at: datetime | None = None
    attempt: int = 0
    fence: int = 0
    enqueued_at: datetime | None = None
    run_at: datetime | None = None
    claimed_at: datetime | None = None
    finished_at: datetime | None = None
    holder: str = ""
    #: The range of revisions it is about, and how many enqueues lie in it.
    first: int = 0
    revision: int = 0
    enqueues: int = 0
    error: Error | None = None
    progress: Any = None


class Feed:
    """Events of one queue, in order, without an end: `async with` it, then `async for event in` it."""

    def __init__(
        self,
        client: QueueClient,
        after: str | None,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> None:
        self._client = client
        self._ids = None if ids is None else _words("ids", ids)
        self._kinds = None if kinds is None else _known(_words("kinds", kinds), is_live=after is None)
        self._shows_progress = after is None and (self._kinds is None or "progress" in self._kinds)
        self._offset = self._read_to = LATEST if after is None else after
        self._buffer: deque[Event] = deque()
        self._progress: dict[int, bytes] = {}
        self._since: Mapping[str, str] | None = None

    @property
    def offset(self) -> str:
        """Where to go on later: after the latest event that was handed out, `fell_off` included."""
        return self._offset

    @property
    def sync(self) -> BlockingFeed:
        """The same, blocking."""
        from dibs.client.sync.claims import BlockingFeed  # noqa: PLC0415 - only who blocks pays for it

        return BlockingFeed(self)

    async def __aenter__(self) -> Self:
        """Begin. Raises Refused for kinds that the queue, as it is configured, does not log."""
        storage = await self._client.storage()
        if self._kinds is not None:
            await self._check_level(storage, self._kinds)
        if self._offset == LATEST:
            # From here on nothing is missed, even if the first event is asked for much later.
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
        """Return the next event, waiting for as long as there is none."""
        while not self._buffer:
            storage = await self._client.storage()
            if self._since is None:
                # Where the log stands before it is read: a task that has yet to begin hears of nothing.
                await self._hint(storage, 0)
            hint = asyncio.ensure_future(self._hint(storage))
            try:
                await self._read(storage)
                if not self._buffer:
                    await hint
            finally:
                abandon_hint(hint)
        event = self._buffer.popleft()
        self._offset = event.offset or self._offset
        return event

    async def _check_level(self, storage: Storage, kinds: frozenset[str]) -> None:
        name = self._client.name
        settings = {info.name: info.settings for info in await storage.queues()}.get(name, Settings())
        if missing := kinds - _BY_LEVEL[settings.log_level] - {"progress"}:
            level = "runs" if missing <= _BY_LEVEL["runs"] else "all"
            raise Refused(
                f"{name} logs at level {settings.log_level!r}, so {', '.join(sorted(missing))} would never "
                f"come; first await queue.configure(log_level={level!r})",
                field="kinds",
            )

    async def _read(self, storage: Storage) -> None:
        page = await storage.events(self._client.name, after=self._read_to or None, limit=PAGE_SIZE)
        self._take(page)
        self._read_to = page.offset
        if self._shows_progress:
            await self._look_for_progress(storage)
        if not self._buffer:
            # What was passed over need not be read again.
            self._offset = page.offset

    def _take(self, page: EventPage) -> None:
        name = self._client.name
        wanted = [event_of(name, offset, event) for offset, event in page.events if self._wants(event)]
        if page.fell_off:
            self._buffer.append(Event(kind="fell_off", offset="" if wanted else page.offset, queue=name))
        self._buffer.extend(wanted)

    def _wants(self, event: Logged) -> bool:
        return (self._kinds is None or event.kind in self._kinds) and (
            self._ids is None or event.id in self._ids
        )

    async def _followed(self, storage: Storage) -> Iterable[tuple[str, Slot]]:
        """Return the jobs whose progress is told."""
        if self._ids is None:
            return (await storage.list(self._client.name, "active", limit=MAX_FOLLOWED)).items
        ids = sorted(self._ids)[:MAX_FOLLOWED]
        return zip(ids, await storage.get(self._client.name, ids), strict=True)

    async def _look_for_progress(self, storage: Storage) -> None:
        """Progress is no transition and in no log, so the live feed compares what the active jobs say."""
        seen: dict[int, bytes] = {}
        for id, slot in await self._followed(storage):
            run = slot.current.run if slot.current else None
            if run is None or run.progress is None:
                continue
            seen[run.fence] = run.progress
            if self._progress.get(run.fence) != run.progress:
                value = msgspec.json.decode(run.progress)
                told = Event(kind="progress", queue=self._client.name, id=id, fence=run.fence, progress=value)
                self._buffer.append(told)
        self._progress = seen

    async def _hint(self, storage: Storage, seconds: float | None = None) -> None:
        name, seconds = self._client.name, SLOW_POLL if seconds is None else seconds
        with suppress(StorageError):
            wake = await storage.wait([name], for_="events", since=self._since, timeout=seconds)
            self._since = wake.since
            return
        await asyncio.sleep(seconds)


def _words(field: str, words: Iterable[str]) -> frozenset[str]:
    if isinstance(words, str):
        # Text is an iterable of letters, and none of them would ever come.
        raise Refused(f"{field} is the text {words!r}; pass a list", field=field)
    return frozenset(words)


def _known(kinds: frozenset[str], *, is_live: bool) -> frozenset[str]:
    if unknown := kinds - _KINDS:
        named, all_ = ", ".join(sorted(unknown)), ", ".join(sorted(_KINDS))
        raise Refused(f"kinds names {named}, which nothing is; there are {all_}", field="kinds")
    if "progress" in kinds and not is_live:
        raise Refused("progress is in no log; leave `after` out, for the live feed tells it", field="kinds")
    return kinds


def event_of(queue: str, offset: str, event: Logged) -> Event:
    """Return an entry of the log as people read it."""
    return Event(
        kind=event.kind,
        offset=offset,
        queue=queue,
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
    )
