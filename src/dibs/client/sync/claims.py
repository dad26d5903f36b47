"""The blocking twins of the async handles: what they say holds here, too.

Written by tools/make_blocking.py from the async source: change that.
"""

# ruff: noqa: SLF001 - a twin is the other half of its handle

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from dibs.client.calls.bound_job import Bound
from dibs.client.claim import Claim
from dibs.client.feed import Event, Feed
from dibs.client.options.durations import Seconds
from dibs.client.options.retention import Retention
from dibs.client.receiver import Receiver
from dibs.client.sync.background_loop import next_item, run, run_with_connection
from dibs.model.results import SettleStatus


class BlockingReceiver:
    """Receiver, blocking."""

    def __init__(self, source: Receiver) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

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
        return BlockingClaim(next_item(self._storage_handle, "async for", self._source))


class BlockingClaim:
    """Claim, blocking."""

    def __init__(self, source: Claim) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    @property
    def queue(self) -> str:
        return self._source.queue

    @property
    def id(self) -> str:
        return self._source.id

    @property
    def fence(self) -> int:
        return self._source.fence

    @property
    def attempt(self) -> int:
        return self._source.attempt

    @property
    def retries(self) -> int:
        return self._source.retries

    @property
    def stalls(self) -> int:
        return self._source.stalls

    @property
    def timeouts(self) -> int:
        return self._source.timeouts

    @property
    def lost(self) -> bool:
        return self._source.lost

    @property
    def cancelled(self) -> bool:
        return self._source.cancelled

    @property
    def data(self) -> Any:
        return self._source.data

    @property
    def attributes(self) -> dict[str, Any]:
        return self._source.attributes

    def complete(
        self,
        result: Any = None,
        *,
        then: Iterable[Bound] = (),
        retention: Retention | Seconds | None = None,
        connection: Any = None,
    ) -> None:
        return run_with_connection(
            self._storage_handle,
            "await claim.complete(...)",
            self._source.complete(result, then=then, retention=retention, connection=connection),
        )

    def fail(self, error: BaseException | str, *, then: Iterable[Bound] = (), connection: Any = None) -> None:
        return run_with_connection(
            self._storage_handle,
            "await claim.fail(...)",
            self._source.fail(error, then=then, connection=connection),
        )

    def retry(
        self, at: datetime | None = None, *, delay: Seconds | None = None, error: BaseException | None = None
    ) -> SettleStatus:
        return run(
            self._storage_handle, "await claim.retry(...)", self._source.retry(at, delay=delay, error=error)
        )

    def release(self) -> SettleStatus:
        return run(self._storage_handle, "await claim.release(...)", self._source.release())

    def hand_off(self) -> int:
        return run(self._storage_handle, "await claim.hand_off(...)", self._source.hand_off())

    def extend(self, seconds: Seconds) -> None:
        return run(self._storage_handle, "await claim.extend(...)", self._source.extend(seconds))

    def progress(self, value: Any) -> None:
        return run(self._storage_handle, "await claim.progress(...)", self._source.progress(value))


class BlockingFeed:
    """Feed, blocking."""

    def __init__(self, source: Feed) -> None:
        self._source = source
        self._storage_handle = source._client.storage_handle

    @property
    def offset(self) -> str:
        return self._source.offset

    def __enter__(self) -> Self:
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        return next_item(self._storage_handle, "async for", self._source)
