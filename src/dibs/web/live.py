"""Live updates: one task reads the pages that somebody watches, and all viewers get its results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from contextvars import Context
from time import monotonic
from typing import Any, Final

from attrs import define, field

from dibs.errors import DibsError
from dibs.web.pages import Alarm, PageKey, Pages, reason_of

#: Seconds of rest after each second of reading, so that the dashboard never keeps a storage busy.
REST: Final = 3.0
#: Most seconds of one rest.
LONGEST_REST: Final = 5.0
#: Seconds until the next reading after an error.
RETRY_SECONDS: Final = 2.0
#: Seconds after which a stream without changes sends a comment, so that proxies keep it open.
PING_SECONDS: Final = 15.0
#: Most viewers and most watched pages of one process.
MAX_VIEWERS: Final = 500
MAX_WATCHED: Final = 100

#: Renders the model of a page.
Render = Callable[[Any], str]
#: The name of an update, "page", "down" or "ping", and its text.
Update = tuple[str, str]


class TooManyViewersError(Exception):
    """The process serves as many live pages as it may."""


@define(eq=False)
class Watch:
    """A page that viewers watch."""

    key: PageKey
    period: float
    viewers: int = 0
    #: Time of the next reading, on the monotonic clock.
    due: float = 0.0
    #: Grows with each change of the model or the error.
    version: int = 0
    model: Any = None
    #: Message of the error of the latest reading; "" if it succeeded.
    error: str = ""
    #: The alarms that the page shows above its model.
    alarms: tuple[Alarm, ...] = ()
    #: Set and replaced at each change.
    changed: asyncio.Event = field(factory=asyncio.Event)
    #: The rendered model, by the variant of the viewer.
    _rendered: dict[object, str] = field(factory=dict)

    def publish(self, model: Any, error: str, alarms: tuple[Alarm, ...] = ()) -> None:
        """Wake the viewers if the model, the error or an alarm differs from the last one."""
        if self.version and (model, error, alarms) == (self.model, self.error, self.alarms):
            return
        self.model, self.error, self.alarms = model, error, alarms
        self.version += 1
        self._rendered.clear()
        self.changed.set()
        self.changed = asyncio.Event()

    def update(self, variant: object, render: Render) -> Update:
        """Return the current update. Viewers of the same variant share its text."""
        if self.error:
            return "down", self.error
        if variant not in self._rendered:
            self._rendered[variant] = render(self.model)
        return "page", self._rendered[variant]


@define(eq=False)
class Live:
    """The watched pages of a process, and the task that reads them one after the other."""

    pages: Pages
    _watches: dict[PageKey, Watch] = field(factory=dict, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    #: Set to end the sleep of the task.
    _wake: asyncio.Event = field(factory=asyncio.Event, init=False)

    @property
    def viewers(self) -> int:
        return sum(watch.viewers for watch in self._watches.values())

    def join(self, key: PageKey) -> Watch:
        """Add a viewer of a page; call `leave` for each `join`. Raises TooManyViewersError."""
        is_full = self.viewers >= MAX_VIEWERS or (
            key not in self._watches and len(self._watches) >= MAX_WATCHED
        )
        if is_full or (period := self.pages.period(key)) is None:
            raise TooManyViewersError
        watch = self._watches.setdefault(key, Watch(key, period))
        watch.viewers += 1
        if self._task is None or self._task.done():
            self._wake = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._poll(), context=Context())
        self._wake.set()
        return watch

    def leave(self, watch: Watch) -> None:
        """Remove a viewer. The task ends with the last one."""
        watch.viewers -= 1
        if not watch.viewers and self._watches.get(watch.key) is watch:
            del self._watches[watch.key]
            self._wake.set()

    def hurry(self) -> None:
        """Read all watched pages soon, as after a write."""
        for watch in self._watches.values():
            watch.due = 0.0
        self._wake.set()

    async def updates(self, watch: Watch, variant: object, render: Render) -> AsyncIterator[Update]:
        """Yield the current state of a page, each change, and pings. A slow viewer skips changes."""
        seen = 0
        while True:
            changed = watch.changed
            if watch.version != seen:
                seen = watch.version
                yield watch.update(variant, render)
                continue
            try:
                await asyncio.wait_for(changed.wait(), PING_SECONDS)
            except TimeoutError:
                yield "ping", ""

    async def _poll(self) -> None:
        while self._watches:
            self._wake.clear()
            watch = min(self._watches.values(), key=lambda each: each.due)
            if (left := watch.due - monotonic()) > 0:
                await self._sleep(left)
                continue
            begun = monotonic()
            await self._refresh(watch)
            took = monotonic() - begun
            watch.due = begun + (RETRY_SECONDS if watch.error else watch.period)
            await asyncio.sleep(min(LONGEST_REST, took * REST))

    async def _sleep(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wake.wait(), seconds)

    async def _refresh(self, watch: Watch) -> None:
        try:
            watch.publish(await self.pages.read(watch.key), "", self.pages.alarms())
        except DibsError as error:
            watch.publish(watch.model, reason_of(error))
        except Exception as error:  # noqa: BLE001 - the task serves all viewers, so no page may end it
            watch.publish(watch.model, f"the page cannot be read: {type(error).__name__}")
