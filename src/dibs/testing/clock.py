"""A manual clock, and a wrapper that passes its time to every call of a storage."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Self, cast

from attrs import field, frozen

from dibs.client.options.arguments import epoch_ms, utc_datetime
from dibs.errors import ConfigurationError
from dibs.storage.protocol import Storage

#: Storage methods with a parameter `now`. A test passes its own time there.
TIMED_METHODS: Final = frozenset(
    name
    for name, method in vars(Storage).items()
    if inspect.isfunction(method) and "now" in method.__annotations__
)


class ManualClock:
    """A clock that stands still until a test moves it, for a storage that was opened with clock="manual".

    The clock starts at `start`, by default at the real time.
    """

    def __init__(self, storage: Storage, start: datetime | None = None) -> None:
        if not storage.capabilities.manual_clock:
            raise ConfigurationError(
                f"{storage.url} does not support a manual clock; use a storage that does, such as memory:"
            )
        #: The time in ms since the epoch. It starts at the real time by default, so a test can use real
        #: datetimes.
        self.now_ms: int = time.time_ns() // 1_000_000 if start is None else epoch_ms("start", start)
        #: Called after each call of a method in TIMED_METHODS through `storage`.
        self.on_call: Callable[[], None] = lambda: None
        self._storage = storage
        #: The storage for the app: each call gets the time of this clock.
        self.storage: Storage = cast("Storage", ManualClockStorage(self, storage, notify=True))
        #: The same storage without `on_call`, for the InlineWorker, which sets `on_call`.
        self.silent_storage: Storage = cast("Storage", ManualClockStorage(self, storage, notify=False))

    @property
    def now_utc(self) -> datetime:
        """The time of this clock as a datetime in UTC."""
        return utc_datetime(self.now_ms)

    async def move_to(self, now: int) -> None:
        """Move the time forward to `now` (ms since the epoch), and wake the waits in the storage."""
        self.now_ms = max(now, self.now_ms)
        # A call with the new time makes the storage wake the waits of these queues.
        await self.storage.counts([info.name for info in await self._storage.queues()])


@frozen(eq=False)
class ManualClockStorage:
    """A wrapper that passes the time of a manual clock as `now` to the methods of a storage.

    `__getattr__` forwards all methods. Those in TIMED_METHODS get `now`.
    """

    _clock: ManualClock
    _storage: Storage
    _notify: bool = field(kw_only=True)

    async def __aenter__(self) -> Self:
        await self._storage.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._storage.__aexit__(kind, error, trace)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._storage, name)
        if name not in TIMED_METHODS:
            return method

        async def timed(*args: Any, **kwargs: Any) -> Any:
            result = await method(*args, **{"now": self._clock.now_ms, **kwargs})
            if self._notify:
                self._clock.on_call()
            return result

        return timed
