"""Blocking form of dibs.client.receiver.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from types import TracebackType
from typing import Self

from dibs.client.receiver import Receiver
from dibs.client.sync.background_loop import next_item, run
from dibs.client.sync.claim import BlockingClaim


class BlockingReceiver:
    """Blocking form of Receiver, returned by its property `sync`.

    The claims of one queue: `with queue.receive() as claims: for claim in claims:`.

    It holds at most `max_jobs` claims: the iteration waits until one of them is settled. The lease of the
    claims is renewed in the background. Jobs under expired leases of other holders return to the queue at
    each renewal, before the first wait for a job, and before the end of the iteration. The end of the block
    releases all claims that are not settled.
    """

    def __init__(self, source: Receiver) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def __enter__(self) -> Self:
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BlockingClaim:
        """Return the next claim. The iteration ends after `wait` seconds without a job."""
        return BlockingClaim(next_item(self._storage_handle, "async for", self._source))
