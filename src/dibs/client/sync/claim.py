"""Blocking forms of receivers, claims and feeds."""

from __future__ import annotations

from typing import Any, Final, Self

from dibs.client.claim import Claim
from dibs.client.feed import Event, Feed
from dibs.client.receiver import Receiver
from dibs.client.sync.background_loop import next_item, run_with_connection
from dibs.client.sync.twin import Attribute, BlockingContext, BlockingHandle, blocking, passing, reads


class BlockingReceiver(BlockingContext[Receiver]):
    """Blocking form of Receiver, returned by its property `sync`: `for claim in claims:`."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingClaim:
        """Return the next claim. The iteration ends after `wait` seconds without a job."""
        return BlockingClaim(next_item(self._storage_handle, "async for", self._source))


class BlockingClaim(BlockingHandle[Claim]):
    """Blocking form of Claim, returned by its property `sync`."""

    queue: Attribute[str] = reads("queue")
    id: Attribute[str] = reads("id")
    fence: Attribute[int] = reads("fence")
    attempt: Attribute[int] = reads("attempt")
    retries: Attribute[int] = reads("retries")
    stalls: Attribute[int] = reads("stalls")
    timeouts: Attribute[int] = reads("timeouts")
    lost: Attribute[bool] = reads("lost")
    cancelled: Attribute[bool] = reads("cancelled")
    data: Attribute[Any] = reads("data")
    attributes: Attribute[dict[str, Any]] = reads("attributes")
    complete: Final = blocking(Claim.complete, runner=run_with_connection)
    fail: Final = blocking(Claim.fail, runner=run_with_connection)
    retry: Final = blocking(Claim.retry)
    release: Final = blocking(Claim.release)
    hand_off: Final = blocking(Claim.hand_off)
    extend: Final = blocking(Claim.extend)
    progress: Final = blocking(Claim.progress)
    spent: Final = passing(Claim.spent)


class BlockingFeed(BlockingContext[Feed]):
    """Blocking form of Feed, returned by its property `sync`: `for event in events:`."""

    offset: Attribute[str] = reads("offset")

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        """Wait for the next event and return it."""
        return next_item(self._storage_handle, "async for", self._source)
