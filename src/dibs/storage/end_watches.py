"""Optional method of a storage: a watch for the end of a job that begins with the answer of its enqueue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from dibs.model.job import Outcome
from dibs.storage.protocol import Storage

#: Called once, on the event loop, when an id may have ended: with the outcome, or with None if the caller
#: must read the state of the id.
OnOutcome = Callable[[Outcome | None], None]
#: Ends a watch. Without effect after its callback was called.
StopWatching = Callable[[], None]


class EndWatches(Protocol):
    """The optional method of a storage that calls back when a job has ended."""

    def watch_end(self, queue: str, id: str, revision: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call `on_outcome` at the next end of the id after the enqueue `revision`, and return a function.

        The outcome may be that of an earlier run, if the enqueue was blocked: compare its revisions. The
        function ends the watch. Return None, and call nothing, if the id may have ended before the call,
        or if the storage receives no messages about the queue; the caller then uses `wait`. As with `wait`, a
        message may be lost, so the caller reads the state now and then.
        """
        ...


def with_end_watches(storage: Storage) -> EndWatches | None:
    """Return the storage if it calls back when a job has ended; None otherwise."""
    # Looked up in the class, as the methods of dibs.storage.direct_enqueue.
    return cast("EndWatches", storage) if hasattr(type(storage), "watch_end") else None
