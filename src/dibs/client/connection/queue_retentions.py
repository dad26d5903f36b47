"""The retention of each queue of an open storage, cached for the waits that extend the retention of a job."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field

from dibs.client.connection.coalescing import Coalescer
from dibs.model.job import OutcomeRetention
from dibs.storage.protocol import Storage

#: Seconds for which the retentions are cached: each wait reads one, and they rarely change.
CACHE_SECONDS: Final = 60.0


@define(eq=False)
class QueueRetentions:
    """The retentions that the queues of a storage are configured with, at most CACHE_SECONDS old.

    One read returns the settings of all queues. Concurrent callers share it, so that 10,000 waits which begin
    at once cause one read. A queue that the read did not return has the default retention.
    """

    _storage: Storage
    _by_queue: Mapping[str, OutcomeRetention] = field(factory=dict, init=False)
    #: The end of the cache's validity, by time.monotonic().
    _valid_until: float = field(default=0.0, init=False)
    _reads: Coalescer[str, OutcomeRetention] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._reads = Coalescer(self._read, read_only=True)

    def known(self, queue: str) -> OutcomeRetention | None:
        """Return the retention of a queue if it is cached, else None."""
        return self._by_queue.get(queue, _DEFAULT) if time.monotonic() < self._valid_until else None

    async def get(self, queue: str) -> OutcomeRetention:
        """Return the retention of a queue. Raises StorageError if it cannot be read."""
        known = self.known(queue)
        return known if known is not None else await self._reads.add(queue)

    def forget(self) -> None:
        """Read the settings again at the next `get`. Called when this client changes them."""
        self._valid_until = 0.0

    async def drain(self) -> None:
        """Wait until the reads in flight have ended. Called before the storage closes."""
        await self._reads.drain()

    async def _read(self, queues: Sequence[str]) -> list[OutcomeRetention]:
        if time.monotonic() >= self._valid_until:
            valid_until = time.monotonic() + CACHE_SECONDS
            self._by_queue = {info.name: info.settings.retention for info in await self._storage.queues()}
            self._valid_until = valid_until
        return [self._by_queue.get(queue, _DEFAULT) for queue in queues]


_DEFAULT: Final = OutcomeRetention()
