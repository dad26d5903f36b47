"""Listings: the statuses of all jobs of a queue in one state, or a page of them."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self

from dibs.client.connection.queue_client import QueueClient
from dibs.client.status import Status, listed_status
from dibs.model.check_values import check_optional_number
from dibs.model.results import State

if TYPE_CHECKING:
    from dibs.client.sync.queue import BlockingListing

#: Most ids that one call of the storage returns.
PAGE_SIZE: Final = 500


class Listing:
    """The jobs of a queue in one state: `async for status in queue.list("failed"):`."""

    def __init__(self, client: QueueClient, state: State, limit: int | None, after: str | None) -> None:
        check_optional_number("limit", limit, 1, 2**53)
        self._client = client
        self._state = state
        #: Number of statuses that are still to be read; None is no limit.
        self._left = limit
        self.cursor: str | None = after
        """Cursor after the statuses that were yielded; pass it as `after` to a later `queue.list`.

        None if no status is left. After a `break` it may lie some statuses before the last one.
        """
        self._page: deque[Status] = deque()
        #: Cursor after `_page`.
        self._next = after
        self._ended = False

    def __repr__(self) -> str:
        return f"<Listing of {self._state} jobs in {self._client.label}>"

    @property
    def sync(self) -> BlockingListing:
        """This listing for code without an event loop."""
        from dibs.client.sync.queue import BlockingListing  # noqa: PLC0415 - async programs never load it

        return BlockingListing(self)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Status:
        """Return the next status. Raises Refused for an unknown state or cursor."""
        while not self._page:
            if self._ended:
                raise StopAsyncIteration
            await self._read_page()
        status = self._page.popleft()
        if not self._page:
            self.cursor = self._next
        return status

    async def _read_page(self) -> None:
        storage, name = await self._client.bounded_storage(), self._client.name
        size = PAGE_SIZE if self._left is None else min(PAGE_SIZE, self._left)
        page = await storage.list(name, self._state, after=self._next, limit=size)
        self._page.extend(listed_status(self._client, id, slot, self._state) for id, slot in page.items)
        self._next = page.after
        if self._left is not None:
            self._left -= len(page.items)
        self._ended = page.after is None or self._left == 0
        if not self._page:
            self.cursor = self._next
