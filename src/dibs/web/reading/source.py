"""The storage as the dashboard reads it: the verbs of an app, and stored values as text for a page."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime
from functools import cached_property
from time import monotonic
from typing import Any, Final, Literal, TypeVar, cast

import msgspec
from attrs import define, field, frozen

from dibs.app import Dibs
from dibs.client.options.serde import Serde
from dibs.client.queue import Queue
from dibs.client.task import Task
from dibs.client.worker_info import WorkerInfo, read_records
from dibs.errors import ConfigurationError, UnknownTask
from dibs.flow.context import FlowContext
from dibs.model.job import Outcome, Slot
from dibs.model.results import ListPage, State
from dibs.storage.protocol import Storage
from dibs.web.reading.shared import Census, Examination, SharedCall

#: Most calls of the storage that one page has pending at a time.
MAX_CALLS: Final = 8
#: Most characters of a value that a page shows, and of all values of a list, such as the arguments of a job.
MAX_CHARACTERS: Final = 20_000
MAX_LIST_CHARACTERS: Final = 60_000
#: Seconds between two log entries about failures of the hook: a page calls it for thousands of errors.
LOG_SECONDS: Final = 10.0
#: Entries that the first call of a scan reads, and bytes that a later call and a whole scan may read: each
#: entry comes with its payload of up to 1 MiB.
FIRST_CALL: Final = 25
CALL_BYTES: Final = 8 * 1024 * 1024
SCAN_BYTES: Final = 64 * 1024 * 1024

Part = Literal["data", "attributes", "result", "progress", "output", "step", "error"]
#: A hook that hides values: it gets the queue, the part of the job and the value, and returns the value to
#: show.
Redact = Callable[[str, Part, Any], Any]

T = TypeVar("T")
R = TypeVar("R")
log = logging.getLogger("dibs.web")


@frozen
class Shown:
    """A stored value as the text that a page shows."""

    text: str
    #: "json", "bytes" for a value that the serde cannot decode, or "hidden" after a failure of the hook.
    kind: Literal["json", "bytes", "hidden"] = "json"
    #: True if the text ends before the value does.
    is_cut: bool = False


def where_raised(error: BaseException) -> str:
    """Return the type of an error and the lines that raised it. Its message may quote a secret."""
    lines = "".join(traceback.format_tb(error.__traceback__))
    return f"{type(error).__name__}, raised at\n{lines}"


HIDDEN: Final = Shown("hidden, because the redaction hook failed", "hidden")


@define(eq=False)
class Source:
    """An app and the hook that hides values of its jobs."""

    app: Dibs
    redact: Redact | None = field(default=None, repr=False)
    census: Census = field(init=False)
    #: The workers that have a record, shared by the pages.
    workers: SharedCall[list[WorkerInfo]] = field(init=False)
    examination: Examination = field(init=False)
    #: Part of a job -> time of the latest log entry about a failure of the hook, on the monotonic clock.
    _logged_at: dict[Part, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.census = Census(self.storage)
        self.workers = SharedCall(self._read_workers)
        self.examination = Examination(self._unbounded_storage)

    async def storage(self) -> Storage:
        """Return the open storage, whose verbs end at the `call_timeout` of the app."""
        return (await self.app._storage_handle.ensure_open()).bounded  # noqa: SLF001 - a part of dibs

    async def _unbounded_storage(self) -> Storage:
        """Return the open storage itself, which examines its own server."""
        return (await self.app._storage_handle.ensure_open()).storage  # noqa: SLF001 - a part of dibs

    async def _read_workers(self) -> list[WorkerInfo]:
        return await read_records(await self.storage())

    @cached_property
    def flow_context(self) -> FlowContext:
        """The parts of the app that flows need. An app without flows=True has none, and gets them here."""
        app = self.app
        return app._flow_context or FlowContext(  # noqa: SLF001 - a part of dibs
            app._storage_handle,  # noqa: SLF001 - a part of dibs
            app._clients,  # noqa: SLF001 - a part of dibs
            app.handlers,
            app._result_decoder,  # noqa: SLF001 - a part of dibs
        )

    def queue(self, name: str) -> Queue:
        return self.app.queue(name)

    def task(self, queue: str) -> Task[Any, Any] | None:
        """Return the task of a queue; None if the app does not declare one."""
        try:
            return self.app.get_task(queue)
        except UnknownTask:
            return None

    def serde(self, queue: str) -> Serde:
        return self.queue(queue)._client.serde  # noqa: SLF001 - a part of dibs

    def decode(self, queue: str, raw: bytes) -> Any:
        """Return stored bytes, decoded by the serde of the queue; unchanged if it cannot decode them."""
        try:
            return self.serde(queue).decode(raw)
        except (ValueError, TypeError, RecursionError, ConfigurationError):
            return raw

    def hide(self, queue: str, part: Part, value: Any) -> Any:
        """Return the value that the redaction hook allows, or HIDDEN if the hook fails."""
        if self.redact is None:
            return value
        try:
            return self.redact(queue, part, value)
        except Exception as error:  # noqa: BLE001 - any error of the hook hides the value
            if monotonic() - self._logged_at.get(part, 0.0) >= LOG_SECONDS:
                self._logged_at[part] = monotonic()
                # Its message may quote the value, so no log.exception.
                log.error(  # noqa: TRY400 - see above
                    "the redaction hook failed for the %s of a job in queue %r: %s",
                    part,
                    queue,
                    where_raised(error),
                )
            return HIDDEN

    def show(self, queue: str, part: Part, value: Any, most: int = MAX_CHARACTERS) -> Shown:
        """Return a decoded value as text of at most `most` characters, after the redaction hook."""
        return to_shown(self.hide(queue, part, value), most)

    def show_json(self, queue: str, part: Part, raw: bytes) -> Shown:
        """Return a value that is stored as JSON, after the redaction hook."""
        return self.show(queue, part, msgspec.json.decode(raw))


def to_shown(value: Any, most: int = MAX_CHARACTERS) -> Shown:
    """Return a value as text of at most `most` characters."""
    if isinstance(value, Shown):
        return value
    if isinstance(value, bytes):
        text, kind = repr(value[:most])[2:-1], "bytes"
    else:
        text, kind = _json_text(value), "json"
    return Shown(text[:most], cast("Literal['json', 'bytes']", kind), len(text) > most)


def iso(ms: int) -> str:
    """Return a time in ms since the epoch as ISO 8601 text in UTC."""
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def share(count: int) -> int:
    """Return the most characters of each of `count` values in a list."""
    return min(MAX_CHARACTERS, MAX_LIST_CHARACTERS // max(1, count))


def _json_text(value: Any) -> str:
    try:
        raw = msgspec.json.encode(value, enc_hook=repr)
        return msgspec.json.format(raw, indent=2).decode()
    except (ValueError, TypeError, RecursionError):
        return repr(value)


async def gather(items: Iterable[T], call: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the answers of `call` for each item, in order, with at most MAX_CALLS calls at a time."""
    turns = asyncio.Semaphore(MAX_CALLS)

    async def one(item: T) -> R:
        async with turns:
            return await call(item)

    return await asyncio.gather(*map(one, items))


@define(eq=False)
class Budget:
    """The bounds of a scan: a number of entries, a time in seconds, and SCAN_BYTES."""

    entries: int
    seconds: float
    #: Number of entries that were read, and the bytes of their values.
    read: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)
    #: Queue and state -> the most entries of the next call, by the average size of those of the last one.
    _limits: dict[tuple[str, State], int] = field(factory=dict, init=False)
    _begun: float = field(factory=monotonic, init=False)

    @property
    def is_spent(self) -> bool:
        is_long = self.read >= self.entries or self._bytes >= SCAN_BYTES
        return is_long or monotonic() - self._begun >= self.seconds

    async def list(
        self, storage: Storage, queue: str, state: State, *, after: str | None, limit: int
    ) -> ListPage:
        """Return the next page of a listing: up to `limit` entries, fewer if those before were long."""
        limit = max(1, min(limit, self.entries - self.read, self._limits.get((queue, state), FIRST_CALL)))
        page = await storage.list(queue, state, after=after, limit=limit)
        size = sum(slot_bytes(slot) for _, slot in page.items)
        self.read += len(page.items)
        self._bytes += size
        if page.items:
            self._limits[queue, state] = CALL_BYTES * len(page.items) // size
        return page


def slot_bytes(slot: Slot) -> int:
    """Return about how many bytes an id has: its payloads, its result, and a few hundred for the rest."""
    size = 500
    for part in (slot.current, slot.successor, slot.outcome):
        if part is not None and part.data is not None:
            size += len(part.data.payload)
    if slot.outcome is not None:
        size += len(slot.outcome.result or b"")
    return size


async def scan_failed(
    storage: Storage, queue: str, budget: Budget, page_size: int
) -> AsyncIterator[tuple[str, Outcome]]:
    """Yield the failed jobs of a queue, until the end or until the budget is spent."""
    after: str | None = None
    while not budget.is_spent:
        page = await budget.list(storage, queue, "failed", after=after, limit=page_size)
        for id, slot in page.items:
            if slot.outcome is not None:
                yield id, slot.outcome
        if (after := page.after) is None:
            return
