"""Blocking form of dibs.client.feed.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from types import TracebackType
from typing import Self

from dibs.client.feed import Event, Feed
from dibs.client.sync.background_loop import next_item, run


class BlockingFeed:
    """Blocking form of Feed, returned by its property `sync`.

    The events of one queue in order: `with queue.events() as events: for event in events:`.

    The iteration waits for new events and never ends.
    """

    def __init__(self, source: Feed) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def offset(self) -> str:
        """Offset of the latest event that the iteration returned: pass it to `queue.events` to continue."""
        return self._source.offset

    def __enter__(self) -> Self:
        """Start the feed. Raises Refused for kinds that the queue's `log_level` leaves out."""
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it."""
        return next_item(self._storage_handle, "async for", self._source)
