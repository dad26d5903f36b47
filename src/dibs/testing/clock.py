"""A storage whose time is what a test says it is."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, cast

from dibs.client.options.durations import epoch_ms, utc_datetime
from dibs.errors import ConfigurationError
from dibs.storage.protocol import Storage

#: The verbs that take the time.
TIMED: Final = frozenset(
    name for name, verb in vars(Storage).items() if inspect.isfunction(verb) and "now" in verb.__annotations__
)


class ManualClock:
    """A storage opened with clock="manual", and the time that every verb to it is told."""

    def __init__(self, storage: Storage, start: datetime | None = None) -> None:
        if not storage.capabilities.manual_clock:
            raise ConfigurationError(f"{storage.url} takes no time from a test: use memory:")
        #: Ms since the epoch; it starts at the real time, so that datetimes in a test mean what they say.
        self.now: int = time.time_ns() // 1_000_000 if start is None else epoch_ms("start", start)
        #: Called after every verb of `storage` that takes the time: something may have moved.
        self.heard: Callable[[], None] = lambda: None
        self._storage = storage
        #: The storage that is told the time.
        self.storage = cast("Storage", ManualClockStorage(self, storage, heard=True))
        #: The same, for who has no need to hear of what it does itself.
        self.quiet = cast("Storage", ManualClockStorage(self, storage, heard=False))

    @property
    def moment(self) -> datetime:
        """The time, in UTC."""
        return utc_datetime(self.now)

    async def move_to(self, now: int) -> None:
        """Let it be later, and let who waits in the storage look again."""
        self.now = max(now, self.now)
        await self.storage.counts([info.name for info in await self._storage.queues()])


class ManualClockStorage:
    """Passes every call on, with the time where a verb takes it. Nothing is left out by forgetting it."""

    def __init__(self, clock: ManualClock, storage: Storage, *, heard: bool) -> None:
        self._clock = clock
        self._storage = storage
        self._heard = heard

    async def __aenter__(self) -> Self:
        await self._storage.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._storage.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._storage, name)
        if name not in TIMED:
            return verb

        async def timed(*args: Any, **kwargs: Any) -> Any:
            answer = await verb(*args, **{"now": self._clock.now, **kwargs})
            if self._heard:
                self._clock.heard()
            return answer

        return timed
