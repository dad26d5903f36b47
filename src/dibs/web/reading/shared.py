"""Readings that all pages of a storage share: calls, the census of queues, and the examination.

A storage with thousands of queues needs seconds to count them all. A page counts the queues that it shows. A
task in the background counts the others in steps, those with the oldest counts first, and a page waits for it
only as long as its time allows. Until each queue was counted once, the task goes on without a page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Any, Final, Generic, TypeVar

from attrs import define, field

from dibs.doctor import Report, examine_open
from dibs.errors import StorageError
from dibs.model.requests import Settings
from dibs.model.results import Counts
from dibs.model.worker_record import without_reserved
from dibs.storage.protocol import Storage
from dibs.storage.read_limits import read_limit

#: Seconds after which a page stops waiting for the storage, and after which a server ends a read.
READ_TIMEOUT: Final = 5.0

T = TypeVar("T")


@define(eq=False)
class SharedCall(Generic[T]):
    """A call with its latest answer. Concurrent callers of an event loop share one call."""

    call: Callable[[], Coroutine[Any, Any, T]]
    _task: asyncio.Task[T] | None = field(default=None, init=False)
    #: Time at which the latest call began, on the monotonic clock.
    _begun: float = field(default=0.0, init=False)

    async def answer(self, max_age: float) -> T:
        """Return the answer of a call that began at most `max_age` seconds ago. Raises its errors."""
        return await asyncio.shield(self.start(max_age))

    def start(self, max_age: float) -> asyncio.Task[T]:
        """Return the call that began at most `max_age` seconds ago, or begin one."""
        loop, task = asyncio.get_running_loop(), self._task
        if task is None or task.get_loop() is not loop or not self._is_usable(task, max_age):
            # An empty context, because the call belongs to all callers and not to the first one.
            context = Context()
            context.run(read_limit.set, READ_TIMEOUT)
            task = self._task = loop.create_task(self.call(), context=context)
            # Without this, asyncio logs the error of a call whose callers have all gone.
            task.add_done_callback(_retrieve_error)
            self._begun = monotonic()
        return task

    def forget(self) -> None:
        """Make the next caller begin a new call, as after a write."""
        self._task = None

    def _is_usable(self, task: asyncio.Task[T], max_age: float) -> bool:
        if not task.done():
            return True
        failed = task.cancelled() or task.exception() is not None
        return not failed and monotonic() - self._begun < max_age


def _retrieve_error(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()


#: Seconds for which pages share the list of queues, and the counts of a queue.
QUEUES_AGE: Final = 3.0
COUNTS_AGE: Final = 1.0
#: Seconds that one step may take to count queues that no page asks for.
STEP_SECONDS: Final = 0.1
#: Seconds that a page waits for the counts of queues that it does not show. On Postgres, a count of 1,000
#: queues takes 0.1 to 0.4 s.
WAIT_SECONDS: Final = 0.05
#: Seconds of rest after each second of a step, unless a page waits.
REST: Final = 3.0
#: Queues that the first call of a step counts; each later call counts four times as many, up to the last.
FIRST_CALL: Final = 50
LARGEST_CALL: Final = 1000


@define(eq=False)
class Census:
    """The known queues, and the latest counts of each."""

    _storage: Callable[[], Awaitable[Storage]]
    _queues: SharedCall[Mapping[str, Settings]] = field(init=False)
    _rest: SharedCall[None] = field(init=False)
    _counts: dict[str, Counts] = field(factory=dict, init=False)
    #: Queue -> time of its counts, on the monotonic clock.
    _counted_at: dict[str, float] = field(factory=dict, init=False)
    #: Number of queues in the latest list.
    _total: int = field(default=0, init=False)
    #: Number of pages that wait until all queues are counted.
    _waiting: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._queues = SharedCall(self._read_queues)
        self._rest = SharedCall(self._count_rest)

    async def queues(self) -> Mapping[str, Settings]:
        """Return the settings of all queues by name."""
        return await self._queues.answer(QUEUES_AGE)

    async def counts(self, first: Iterable[str] = (), seconds: float = 0.0) -> Mapping[str, Counts]:
        """Return the known counts by queue. Those of `first` are new.

        Wait up to `seconds` until all queues are counted, at least WAIT_SECONDS. `uncounted` queues are
        missing.
        """
        names = await self.queues()
        await self._count(self._old(name for name in first if name in names))
        self._waiting += bool(seconds)
        limit = asyncio.timeout(max(seconds, WAIT_SECONDS))
        try:
            async with limit:
                await self._rest.answer(COUNTS_AGE)
        except TimeoutError:
            if not limit.expired():
                raise
        finally:
            self._waiting -= bool(seconds)
        return self._counts

    @property
    def known(self) -> Mapping[str, Counts]:
        """The counts that were read before, without a call of the storage."""
        return self._counts

    @property
    def uncounted(self) -> int:
        """Number of queues that were never counted."""
        return self._total - len(self._counts)

    def forget(self) -> None:
        """Read queues and counts again for the next page, as after a write."""
        self._queues.forget()
        self._rest.forget()
        self._counted_at.clear()

    async def _read_queues(self) -> Mapping[str, Settings]:
        found = {
            info.name: info.settings for info in without_reserved(await (await self._storage()).queues())
        }
        for name in self._counts.keys() - found.keys():
            del self._counts[name]
        self._total = len(found)
        return found

    def _old(self, names: Iterable[str]) -> list[str]:
        """Return the names whose counts are missing or too old, the oldest first."""
        before = monotonic() - COUNTS_AGE
        old = [name for name in names if self._counted_at.get(name, 0.0) <= before]
        return sorted(old, key=lambda name: self._counted_at.get(name, 0.0))

    async def _count_rest(self) -> None:
        while True:
            begun = monotonic()
            await self._count_step()
            if not self.uncounted:
                return
            await asyncio.sleep(0 if self._waiting else (monotonic() - begun) * REST)

    async def _count_step(self) -> None:
        begun, old, size = monotonic(), self._old(await self.queues()), FIRST_CALL
        # At least one call, so that a slow storage is counted in the end.
        while old:
            await self._count(old[:size])
            del old[:size]
            size = min(size * 4, LARGEST_CALL)
            if monotonic() - begun >= STEP_SECONDS:
                return

    async def _count(self, names: Sequence[str]) -> None:
        if not names:
            return
        found = await (await self._storage()).counts(names)
        now = monotonic()
        self._counts.update(found)
        self._counted_at.update(dict.fromkeys(names, now))


#: Seconds for which an examination is shown: each page has its errors.
MAX_AGE: Final = 10.0
#: Seconds that a view of the page waits for an examination. A later one appears by a live update.
PATIENCE: Final = 1.0


@define(eq=False)
class Examination:
    """The latest report of an examination."""

    _storage: Callable[[], Awaitable[Storage]]
    _call: SharedCall[Report] = field(init=False)
    _latest: Report | None = field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._call = SharedCall(self._examine)

    async def report(self) -> Report | None:
        """Return a report of at most MAX_AGE seconds, else the one before, or None. Raise StorageError."""
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                return await self._call.answer(MAX_AGE)
        except TimeoutError:
            if not limit.expired():
                raise
        return self._latest

    async def begin(self) -> None:
        """Wait, up to PATIENCE seconds, for the first report, so that the first view has its banner."""
        if self._latest is None:
            # The reading of the page says what is wrong with a storage that does not answer.
            with suppress(StorageError):
                await self.report()

    def glance(self) -> Report | None:
        """Return the latest report at once, None without one. Begin an examination if it is MAX_AGE old."""
        self._call.start(MAX_AGE)
        return self._latest

    async def _examine(self) -> Report:
        self._latest = await examine_open(await self._storage())
        return self._latest
