"""What is being certified: how a place of it is opened, and a loop to call it from synchronous rules."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage, remove, scheme_of

T = TypeVar("T")

#: The option of a URL that makes it a place of its own on a server.
PLACE_OPTION: Final = {
    "redis": "prefix",
    "rediss": "prefix",
    "unix": "prefix",
    "redis+cluster": "prefix",
    "postgresql": "schema",
    "postgres": "schema",
}

#: Opens a place: the same name is the same store, a new name an empty one.
OpenStorage = Callable[[str, Clock], AbstractAsyncContextManager[Storage]]


class Places:
    """Makes places of the kit's own, and removes what it made."""

    def __init__(self, target: str | OpenStorage) -> None:
        self.name = target if isinstance(target, str) else getattr(target, "__qualname__", repr(target))
        self.target = target
        self._run = uuid4().hex[:12]
        self._numbers = count()
        self._folder: Path | None = None
        self._made: list[str] = []

    def new(self) -> str:
        """A place nobody used before."""
        name = f"certify_{self._run}_{next(self._numbers)}"
        if not isinstance(self.target, str):
            return name
        return self._beside(self.target, name)

    def _beside(self, url: str, name: str) -> str:
        """A URL like the one that was given, for a place of our own."""
        address, mark, query = url.partition("?")
        if scheme_of(url) == "memory":
            return f"memory:{name}{mark}{query}"
        if scheme_of(url) == "file":
            return f"file:{self._subfolder(address.partition(':')[2]) / name}{mark}{query}"
        option = PLACE_OPTION.get(scheme_of(url))
        if option is None:
            raise NotImplementedError(
                f"the kit does not know how to make a place of its own on {scheme_of(url)}: "
                "give certify(open_storage) instead of a URL"
            )
        kept = [part for part in query.split("&") if part and not part.startswith(f"{option}=")]
        own = f"{address}?{'&'.join([*kept, f'{option}={name}'])}"
        self._made.append(own)
        return own

    def _subfolder(self, path: str) -> Path:
        if self._folder is None:
            parent = Path(path.removeprefix("//") or ".")
            parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="certify-", dir=parent))
        return self._folder

    def open(self, place: str, clock: Clock = "manual") -> AbstractAsyncContextManager[Storage]:
        if isinstance(self.target, str):
            return open_storage(place, clock)
        return self.target(place, clock)

    def clear(self) -> None:
        """Remove what was made: the folder, and the places on a server."""
        asyncio.run(self._remove_made())
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _remove_made(self) -> None:
        made, self._made = self._made, []
        for url in made:
            await remove(url)


class Bridge:
    """An event loop for rules that are synchronous."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)

    def close(self) -> None:
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()


class Opened:
    """A place held open across many calls of a bridge, and reopened at will."""

    def __init__(self, places: Places, bridge: Bridge, place: str, clock: Clock = "manual") -> None:
        self.place = place
        self._places, self._bridge, self._clock = places, bridge, clock
        self._open()

    def _open(self) -> None:
        self._context = self._places.open(self.place, self._clock)
        self.storage: Storage = self._bridge.run(_enter(self._context))

    def reopen(self) -> None:
        self.close()
        self._open()

    def close(self) -> None:
        self._bridge.run(_leave(self._context))


async def _enter(context: AbstractAsyncContextManager[Storage]) -> Storage:
    return await context.__aenter__()


async def _leave(context: AbstractAsyncContextManager[Storage]) -> None:
    await context.__aexit__(None, None, None)
