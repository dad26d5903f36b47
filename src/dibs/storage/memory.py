"""The storage in memory: the index, a lock and a clock. Read this first.

Everything dies with the process. `memory:` is a place of its own each time it is opened; `memory:NAME` is
the same place for everyone in this process who opens that name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from dibs.errors import NotRunning
from dibs.model.results import WaitResult
from dibs.storage.capabilities import Capabilities
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.storage import IndexedStorage, P, T, Verb
from dibs.storage.indexed.wait import Alarm, Waiter, seconds_until_due, sleep_until
from dibs.storage.indexed.waiters import Wakeups, wake_of
from dibs.storage.protocol import Clock
from dibs.storage.registry import read_options


class Place:
    """What the storages of one name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.index = Index()
        self.wakeups = Wakeups()


_NAMED: Final[dict[str, Place]] = {}
# A forked child has a copy of every job. If it ran them, each would run twice: it begins with nothing.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_NAMED.clear)


def _place(name: str) -> Place:
    return _NAMED.setdefault(name, Place()) if name else Place()


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> MemoryStorage:
    """Return the storage for `memory:` or `memory:NAME`."""
    place, _ = read_options(url, {}, options)
    return MemoryStorage(place.partition(":")[2].lstrip("/"), clock=clock)


def place_url(url: str, name: str) -> str:
    """Return the URL of the place of this name, in this process."""
    scheme, _, _ = url.partition(":")
    return f"{scheme}:{name}"


async def remove_url(url: str) -> None:
    """Forget the place; whoever has it open keeps what is in it."""
    place, _ = read_options(url, {}, {})
    _NAMED.pop(place.partition(":")[2].lstrip("/"), None)


class MemoryStorage(IndexedStorage):
    """Jobs in this process, safe for threads; each step is made under one lock and never awaits."""

    capabilities = Capabilities(cross_queue=True, push_wakeups=True, manual_clock=True)
    durability = "none: what is in memory dies with this process"

    def __init__(self, name: str = "", *, clock: Clock = "system") -> None:
        super().__init__(clock)
        self.url = f"memory:{name}"
        self._name = name
        self._place = _place(name)

    async def open(self) -> None:
        """Open the place; after a fork it is a new one."""
        if self._is_forked:
            self._place = _place(self._name)
        self._open, self._process = True, os.getpid()

    async def close(self) -> None:
        """Close this door to the place, and end the waits."""
        self._open = False
        if self._is_forked:
            return
        with self._place.lock:
            self._place.wakeups.wake_all()

    async def _step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        place = self._place
        with place.lock:
            self._tick(now)
            answer, step = place.index.attempt(lambda index: verb(index, *args, **kwargs))
            if step:
                place.wakeups.notify(step)
        return answer

    async def _look(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with self._place.lock:
            self._tick(now)
            return verb(self._place.index, *args, **kwargs)

    def _tick(self, now: int | None) -> None:
        at = self._time(now)
        if at > self._place.index.now:
            self._place.index.now = at
            if self._manual:
                self._place.wakeups.wake_all()

    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        place = self._place
        with place.lock:
            self._tick(None)
            woken = place.wakeups.moved(waiter, place.index, since)
            if not woken:
                place.wakeups.join(waiter)
            due = Alarm(None if self._manual else seconds_until_due(place.index, waiter))
        if not woken:
            try:
                woken = await sleep_until(waiter, timeout, due.left) or due.rang
            finally:
                with place.lock:
                    place.wakeups.leave(waiter)
        if not self._open:
            raise NotRunning(f"{self.url} was closed")
        with place.lock:
            return wake_of(place.wakeups, place.index, waiter, woken=woken)
