"""Optional methods of a storage: enqueues that their callers send, without a task of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from dibs.model.check_jobs import CheckedBatch
from dibs.model.results import EnqueueResult
from dibs.storage.protocol import Storage

#: Called once with the results of a direct enqueue, with its error, or with None if the server surely did
#: not run it.
OnEnd = Callable[[Sequence[EnqueueResult] | Exception | None], None]


class DirectEnqueue(Protocol):
    """The optional method of a storage that can send an enqueue at once."""

    def start_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd) -> bool:
        """Send an enqueue now, and call `on_end` in the event loop when it has ended.

        Return False, and send nothing, if this takes more than a write to an open connection; the caller then
        uses `enqueue`. The effect is that of `enqueue`. Call it on the event loop of the storage.
        """
        ...


def with_direct_enqueue(storage: Storage) -> DirectEnqueue | None:
    """Return the storage if it can send an enqueue at once; None otherwise."""
    # Looked up in the class. A wrapper with `__getattr__` would return the method of the storage inside it,
    # and the calls would bypass the wrapper.
    return cast("DirectEnqueue", storage) if hasattr(type(storage), "start_enqueue") else None


class BlockingEnqueue(Protocol):
    """The optional methods of a storage with which a thread without an event loop enqueues."""

    def enqueue_blocking(
        self, queue: str, requests: CheckedBatch, seconds: float | None = None
    ) -> Sequence[EnqueueResult] | None:
        """Enqueue on this thread, which may be any thread of the process, and wait for the results.

        `seconds` is the deadline of the call; None for the storage's own limit.

        Return None if no connection is ready, or the server surely did not run it; the caller then uses
        `enqueue` on the event loop of the storage. The effect is that of `enqueue`. Raise the errors of
        `enqueue`.
        """
        ...

    def prepare_blocking(self) -> None:
        """Start to open a connection for `enqueue_blocking`. Call it on the event loop of the storage."""
        ...


def with_blocking_enqueue(storage: Storage) -> BlockingEnqueue | None:
    """Return the storage if threads without an event loop can enqueue with it; None otherwise."""
    return cast("BlockingEnqueue", storage) if hasattr(type(storage), "enqueue_blocking") else None
