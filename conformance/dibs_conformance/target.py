"""The storage under test: its locations, the plan of a level, and an event loop for synchronous callers.

A location is a URL or a name at which the storage keeps its data, such as a folder or a schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, TypeVar, cast
from uuid import uuid4

from attrs import field, frozen

from dibs.storage.addresses import redact_url
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import connect, open_storage, parse_scheme, remove_storage, temporary_url
from dibs_conformance.report.values import Findings, SkippedTest

T = TypeVar("T")

#: A function that opens a storage at a location. A new location is empty; a known one has its earlier jobs.
OpenStorage = Callable[[str, Clock], AbstractAsyncContextManager[Storage]]
#: A callback that is called with the number of histories tested so far.
Progress = Callable[[int], None]


class Locations:
    """The locations of the storage under test. The kit creates them, and removes them at the end."""

    def __init__(self, target: str | OpenStorage) -> None:
        self.name = (
            without_secrets(target)
            if isinstance(target, str)
            else getattr(target, "__qualname__", repr(target))
        )
        self.target = target
        self._run = uuid4().hex[:12]
        self._numbers = count()
        self._made: list[str] = []

    def new(self) -> str:
        """Return a new, empty location: a URL if the target is a URL, else a name."""
        name = f"certify_{self._run}_{next(self._numbers)}"
        if not isinstance(self.target, str):
            return name
        own = temporary_url(self.target, name)
        if own is None:
            scheme = parse_scheme(self.target)
            raise NotImplementedError(
                f"the kit cannot create a location of its own for {scheme}: URLs. Define "
                "temporary_url(url, name) in the module of your factory, or certify a function open_storage"
            )
        self._made.append(own)
        return own

    def open(self, location: str, clock: Clock = "manual") -> AbstractAsyncContextManager[Storage]:
        """Return a storage at a location, as an async context manager."""
        if isinstance(self.target, str):
            return open_storage(location, clock)
        return self.target(location, clock)

    def connect(self, location: str) -> AbstractAsyncContextManager[Any] | None:
        """Return a database connection to a location, or None if the target does not offer one.

        A URL gets its connection from `registry.connect`. A function may have an attribute
        `connect(location)`.
        """
        if isinstance(self.target, str):
            return connect(location)
        offered = getattr(self.target, "connect", None)
        return None if offered is None else cast("AbstractAsyncContextManager[Any]", offered(location))

    def remove_all(self) -> None:
        """Remove all locations that `new` created. Call it without a running event loop."""
        asyncio.run(self.remove())

    async def remove(self) -> None:
        """Remove all locations that `new` created. The next call removes only newer ones."""
        made, self._made = self._made, []
        for url in made:
            await remove_storage(url)


def without_secrets(url: str) -> str:
    """Return the URL for a report: without user and password, and without options, which may hold secrets."""
    return redact_url(url)


@frozen(kw_only=True)
class LevelPlan:
    """The input of one level: the target, the seed, and how long to test."""

    #: Creates and opens locations in this process. `locations.target` can be pickled for another process.
    locations: Locations
    #: The capabilities that the storage claims. A test of an unclaimed capability is skipped.
    claims: Capabilities
    seed: int
    #: Seconds to spend, approximately. The level returns after this time, or at its first failure.
    budget: float
    #: Number of histories to test instead of the budget, for a run that is the same on every machine.
    examples: int | None = None
    #: Most calls in one history.
    steps: int = 50
    #: Capabilities that are claimed and could not be tried. L0 reports them.
    untested: tuple[SkippedTest, ...] = ()
    #: Called with the number of histories tested so far.
    progress: Progress = field(default=lambda _: None)


#: A function that tests a storage at one level.
RunLevel = Callable[[LevelPlan], Findings]


class LoopRunner:
    """An event loop that runs coroutines for synchronous callers."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class OpenedStorage:
    """A storage that stays open between synchronous calls. `reopen` simulates a restart of its process.

    Each of the handles is a storage object of its own at the same location.
    """

    def __init__(
        self,
        locations: Locations,
        runner: LoopRunner,
        location: str,
        clock: Clock = "manual",
        *,
        handles: int = 1,
    ) -> None:
        self.location = location
        self._locations, self._runner, self._clock = locations, runner, clock
        self._wanted = handles
        self._open()

    @property
    def storage(self) -> Storage:
        """The first handle."""
        return self.handles[0]

    def _open(self) -> None:
        self._contexts = [self._locations.open(self.location, self._clock) for _ in range(self._wanted)]
        self.handles: list[Storage] = [
            self._runner.run(_enter_context(context)) for context in self._contexts
        ]

    def reopen(self) -> None:
        """Close the storage and open a new one at the same location."""
        self.close()
        self._open()

    def close(self) -> None:
        for context in self._contexts:
            self._runner.run(_exit_context(context))


async def _enter_context(context: AbstractAsyncContextManager[Storage]) -> Storage:
    return await context.__aenter__()


async def _exit_context(context: AbstractAsyncContextManager[Storage]) -> None:
    await context.__aexit__(None, None, None)
