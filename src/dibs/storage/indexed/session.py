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
from dibs.storage import checks
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

    def _time_of_verb(self, now: int | None) -> int:
        """Check that the storage is open, and return the time of a verb in ms.

        The result may be before the time of an earlier verb; the index then keeps the later time.
        """
        self._check_open()
        checks.check_now(now, manual=self._manual)
        if self._manual:
            return now or 0
        return time.time_ns() // 1_000_000
