"""The storage under test: its locations, the plan of a level, and a storage that stays open.

A location is a URL or a name at which the storage keeps its data, such as a folder or a schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import count
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from attrs import field, frozen
from msgspec import structs

from dibs.storage.addresses import redact_url
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import (
    connect,
    find_hook,
    open_storage,
    parse_scheme,
    remove_storage,
    temporary_url,
)
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.report.values import Findings, SkippedTest, merge_findings

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

    def data_folder(self, location: str) -> Path | None:
        """Return the folder with all files of a location, or None if the target does not offer it."""
        found = self._hook("data_folder", location)
        return None if found is None else Path(found)

    def power_loss(self, location: str) -> AbstractContextManager[Callable[[], None]] | None:
        """Return a device for a location, or None if the target does not offer one.

        The device is a context manager of a function that cuts its power.
        """
        found = self._hook("power_loss", location)
        return None if found is None else cast("AbstractContextManager[Callable[[], None]]", found)

    def has_hook(self, name: str) -> bool:
        """Return whether the target offers a hook."""
        return self._find_hook(name) is not None

    def _hook(self, name: str, location: str) -> Any:
        hook = self._find_hook(name)
        return None if hook is None else hook(location)

    def _find_hook(self, name: str) -> Callable[[str], Any] | None:
        """Return a function beside the factory of a URL, or an attribute of a function `open_storage`."""
        if isinstance(self.target, str):
            return find_hook(self.target, name)
        return getattr(self.target, name, None)

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
    #: Functions that return the findings so far. They are used if the level is interrupted.
    sources: list[Callable[[], Findings]] = field(factory=list)

    def findings_so_far(self) -> Findings:
        """Return the numbers of tests so far, without the failures."""
        return counts_only(merge_findings(*(source() for source in self.sources)))


def counts_only(found: Findings) -> Findings:
    """Return the findings without failures and without laws, which are not complete yet."""
    return structs.replace(found, failures=(), laws=())


#: A function that tests a storage at one level.
RunLevel = Callable[[LevelPlan], Findings]


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

    def reopen(self, handle: int | None = None) -> None:
        """Close all handles, or one of them, and open new ones at the same location."""
        if handle is None:
            self.close()
            self._open()
            return
        self._runner.run(_exit_context(self._contexts[handle]))
        self._contexts[handle] = self._locations.open(self.location, self._clock)
        self.handles[handle] = self._runner.run(_enter_context(self._contexts[handle]))

    def close(self) -> None:
        for context in self._contexts:
            self._runner.run(_exit_context(context))


async def _enter_context(context: AbstractAsyncContextManager[Storage]) -> Storage:
    return await context.__aenter__()


async def _exit_context(context: AbstractAsyncContextManager[Storage]) -> None:
    await context.__aexit__(None, None, None)
