"""Blocking form of dibs.client.listing.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from typing import Self

from dibs.client.listing import Listing
from dibs.client.status import Status
from dibs.client.sync.background_loop import next_item


class BlockingListing:
    """Blocking form of Listing, returned by its property `sync`.

    The jobs of a queue in one state: `for status in queue.list("failed"):`.
    """

    def __init__(self, source: Listing) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def cursor(self) -> str | None:
        """Cursor after the statuses that were yielded; pass it as `after` to a later `queue.list`.

        None if no status is left. After a `break` it may lie some statuses before the last one.
        """
        return self._source.cursor

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Status:
        """Return the next status. Raises Refused for an unknown state or cursor."""
        return next_item(self._storage_handle, "async for", self._source)
