"""An open storage over an index: opening and closing, the clock, and the two ways to run a verb."""

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
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.waiters import Waiter
from dibs.storage.protocol import Clock

P = ParamSpec("P")
T = TypeVar("T")
#: A verb: a function of an index and its arguments.
Verb = Callable[Concatenate[Index, P], T]


class IndexedSession(ABC):
    """The base of a storage whose jobs are in an Index. A subclass locks the index and stores its changes."""

    capabilities: Capabilities
    durability: str
    url: str

    def __init__(self, clock: Clock, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self._manual = clock == "manual"
        self._open = False
        self._process = 0

    @abstractmethod
    async def _run_step(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb as one atomic step, at `now` or at the time of the clock."""

    @abstractmethod
    async def _read(self, now: int | None, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a verb that only reads."""

    @abstractmethod
    async def _wait(self, waiter: Waiter, since: Mapping[str, str], timeout: float | None) -> WaitResult:
        """Wait until a step wakes the waiter, a job falls due, or for `timeout` s."""

    @abstractmethod
    async def open(self) -> None:
        """Open the storage."""

    @abstractmethod
    async def close(self) -> None:
        """Close the storage."""

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

    def _time(self, now: int | None) -> int:
        """Return the time of a verb in ms. The index ignores a time before an earlier one."""
        self._check_open()
        checks.check_now(now, manual=self._manual)
        if self._manual:
            return now or 0
        return time.time_ns() // 1_000_000
