"""The storage in memory: an Index of all jobs under one lock. It is the simplest storage, so read it first.

Its jobs are lost when the process ends. `memory:` opens a new, empty storage each time. `memory:NAME` opens
the same storage for every caller in the process that uses this name.
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
from dibs.storage.indexed.waiters import (
    Deadline,
    Waiter,
    Wakeups,
    seconds_until_due,
    sleep_until,
    wait_result,
)
from dibs.storage.protocol import Clock
from dibs.storage.registry import read_options


class SharedIndex:
    """The jobs, the lock and the waiters that all MemoryStorage objects with the same name share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.index = Index()
        self.wakeups = Wakeups()


_NAMED: Final[dict[str, SharedIndex]] = {}
# A forked child process inherits a copy of every job. Clear the copies: the child would run each job again.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_NAMED.clear)


def _shared_index(name: str) -> SharedIndex:
    return _NAMED.setdefault(name, SharedIndex()) if name else SharedIndex()


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> MemoryStorage:
    """Return the storage of a URL `memory:` or `memory:NAME`."""
    bare_url, _ = read_options(url, {}, options)
    return MemoryStorage(bare_url.partition(":")[2].lstrip("/"), clock=clock)


def temporary_url(url: str, name: str) -> str:
    """Return `memory:NAME`, for a storage that the conformance kit creates and removes."""
    scheme, _, _ = url.partition(":")
    return f"{scheme}:{name}"


async def remove_url(url: str) -> None:
    """Forget the storage `memory:NAME`. Objects that have it open keep its jobs until they close."""
    bare_url, _ = read_options(url, {}, {})
    _NAMED.pop(bare_url.partition(":")[2].lstrip("/"), None)


class MemoryStorage(IndexedStorage):
    """A storage in the memory of this process, safe for threads.

    Each verb runs under one lock and returns without awaiting; only `wait` awaits.
    """

    capabilities = Capabilities(
        cross_queue=True, push_wakeups=True, manual_clock=True, limits=True, fair=True, output=True
    )
    durability = "none: the jobs are in memory and end with this process"
    #: Several event loops may use one object. It may be entered again while it is open.
    thread_safe = True

    def __init__(self, name: str = "", *, clock: Clock = "system") -> None:
        super().__init__(clock)
        self.url = f"memory:{name}"
        self._name = name
        self._shared = _shared_index(name)

    async def open(self) -> None:
        """Open the storage. In a forked process, open a new, empty storage instead of the parent's copy."""
        if self._is_forked:
            self._shared = _shared_index(self._name)
        self._open, self._process = True, os.getpid()

    async def close(self) -> None:
        """Close this object. Pending waits end: those on this object raise NotRunning."""
        self._open = False
        if self._is_forked:
            return
        with self._shared.lock:
            self._shared.wakeups.wake_all()

    async def _run_step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        shared = self._shared
        with shared.lock:
            if self._advance_clock(shared.index, now):
                shared.wakeups.wake_all()
            answer, step = shared.index.run_step(lambda index: verb(index, *args, **kwargs))
            if step:
                shared.wakeups.notify(step)
        return answer

    async def _run_read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        shared = self._shared
        with shared.lock:
            if self._advance_clock(shared.index, now):
                shared.wakeups.wake_all()
            return verb(shared.index, *args, **kwargs)

    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        shared = self._shared
        with shared.lock:
            self._advance_clock(shared.index, None)
            woken = shared.wakeups.has_changed(waiter, shared.index, since)
            if not woken:
                shared.wakeups.add(waiter)
            due = Deadline(None if self._manual else seconds_until_due(shared.index, waiter))
        if not woken:
            try:
                woken = await sleep_until(waiter, timeout, due.remaining) or due.passed
            finally:
                with shared.lock:
                    shared.wakeups.remove(waiter)
        if not self._open:
            raise NotRunning(f"{self.url} was closed")
        with shared.lock:
            return wait_result(shared.wakeups, shared.index, waiter, woken=woken)
