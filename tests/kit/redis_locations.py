"""Opens locations of the kit on a real Redis: each is a key prefix."""

from __future__ import annotations

from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage


class RedisLocations:
    """A function `open_storage(location, clock)` that can be pickled for other processes."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, location: str, clock: Clock) -> Storage:
        return open_storage(self._url, clock, prefix=location)

    def __repr__(self) -> str:
        return "redis, a prefix for each location"
