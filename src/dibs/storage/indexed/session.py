"""The base class for opening an indexed storage, for its clock, and for running verbs on its index."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Concatenate, ParamSpec, Self, TypeVar

from dibs.errors import NotRunning
from dibs.model.limits import LIMITS, Limits
from dibs.model.results import WaitResult
from dibs.storage import checks, clock
from dibs.storage.capabilities import Capabilities
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.waiters import Waiter
from dibs.storage.protocol import Clock

P = ParamSpec("P")
T = TypeVar("T")
#: A function that implements a verb, called with the index and the arguments of the verb.
Verb = Callable[Concatenate[Index, P], T]


class IndexedSession(ABC):
    """The base class of storages whose jobs are in an Index.

    A subclass defines how to lock the index, how to store its changes, and how to wait.
    """

    capabilities: Capabilities
    durability: str
    url: str

    def __init__(self, clock: Clock, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._manual = clock == "manual"
        self._reported_lead = 0
        self._open = False
        self._process = 0

    @abstractmethod
    async def _run_step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that changes the index, as one atomic step. `now` is for a manual clock, in ms."""

    @abstractmethod
    async def _run_read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that only reads, on the newest state of the index."""

    @abstractmethod
    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        """Wait until a step wakes the waiter or a scheduled job falls due, for at most `timeout` s.

        Return at once if a queue has changed since its token in `since`.
        """

    @abstractmethod
    async def open(self) -> None:
        """Open the storage, and create it if it does not exist. Called by `async with`."""

    @abstractmethod
    async def close(self) -> None:
        """Close the storage. Pending waits then raise NotRunning."""

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def _is_forked(self) -> bool:
        """True if a parent process opened the storage: a forked child has none of its threads."""
        return self._process not in (0, os.getpid())

    def _check_open(self) -> None:
        if not self._open:
            raise NotRunning(f"{self.url} is not open; open it with `async with`")
        if self._is_forked:
            raise NotRunning(f"{self.url} was opened before a fork: open it again in this process")

    def _advance_clock(self, index: Index, now: int | None) -> bool:
        """Check that the storage is open, and set `index.now` to the time of a verb.

        Return whether a manual clock has moved.
        """
        self._check_open()
        checks.check_now(now, manual=self._manual)
        if self._manual:
            before = index.now
            index.now = max(before, now or 0)
            return index.now > before
        time_ms = time.time_ns() // 1_000_000
        if time_ms >= index.now:
            index.now = time_ms
            index.lead = 0
        else:
            index.now, index.lead = clock.storage_time(time_ms, index.now, index.lead)
        if index.lead != self._reported_lead:
            self._reported_lead = index.lead
            clock.report_lead(self.url, index.lead)
        return False
