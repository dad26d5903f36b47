"""The numbers that `app.work()` returns, and the requests to stop it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from attrs import define, field, frozen

from dibs.storage.running_loop import running_loop

#: The ways in which a worker ends its part of a claimed run; QueueReport counts each. Except `lost` and
#: `handed_off`, each is also the kind of an event in the log of the queue.
RUN_ENDS: Final = (
    "completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released", "lost", "handed_off",
)  # fmt: skip


@define(kw_only=True)
class QueueReport:
    """Numbers of one queue: runs that were claimed, and how these runs ended."""

    claimed: int = 0
    """Runs that the worker claimed."""
    completed: int = 0
    """Runs whose handler returned."""
    failed: int = 0
    """Runs that ended their job as failed: a permanent error, or no retries left."""
    cancelled: int = 0
    """Runs that ended their job as cancelled."""
    retried: int = 0
    """Runs that raised an error and whose job waits for its next run."""
    stalled: int = 0
    """Runs whose process died and whose job waits for its next run."""
    timed_out: int = 0
    """Runs that took longer than their timeout and whose job waits for its next run."""
    released: int = 0
    """Runs that were given back unfinished: the worker stopped, or the handler raised Snooze."""
    lost: int = 0
    """Runs whose lease ended before they were settled, so that the storage refused their result."""
    handed_off: int = 0
    """Runs whose handler handed them off, so that another program ends them."""
    reaped: int = 0
    """Expired runs of any worker, this one included, that the worker found and returned to the queue."""

    @property
    def running(self) -> int:
        """Runs that the worker has claimed and whose end is not stored yet."""
        return self.claimed - sum(int(getattr(self, end)) for end in RUN_ENDS)


@define(kw_only=True)
class WorkReport:
    """Numbers of one call of `app.work()`, added up over all its processes."""

    queues: dict[str, QueueReport] = field(factory=dict[str, QueueReport])
    """The numbers of each queue, by its name."""
    processes: tuple[int, ...] = ()
    """Process ids of the worker processes that are alive; empty if the work is done in this process."""
    crashes: int = 0
    """Worker processes that ended without being asked to."""
    overruns: int = 0
    """`def` handlers that were still running after their timeout."""
    seconds: float = 0.0
    """Seconds since the call began."""

    def queue(self, name: str) -> QueueReport:
        """Return the numbers of a queue; all are 0 for a queue that had no run."""
        return self.queues.setdefault(name, QueueReport())

    def total(self, number: str) -> int:
        """Return the sum of one number of QueueReport over all queues: `report.total("completed")`."""
        return sum(int(getattr(queue, number)) for queue in self.queues.values())

    def add(self, queue: str, ends: Mapping[str, int]) -> None:
        """Add ends of runs, as {"completed": 3, "failed": 1}, to the numbers of a queue."""
        numbers = self.queue(queue)
        for end, runs in ends.items():
            setattr(numbers, end, getattr(numbers, end) + runs)


@frozen
class StopRequest:
    """A request to stop. An `urgent` request after the first request releases the remaining runs at once."""

    #: Seconds that runs may still take; None for the `grace` of `app.work`.
    grace: float | None = None
    #: True for a signal: two signals mean "now". False for `app.stop`, which may be called twice by accident.
    urgent: bool = False


@define(eq=False)
class StopRequests:
    """The requests to stop one call of `app.work`, in the order they came. Created on its event loop."""

    _loop: asyncio.AbstractEventLoop = field(factory=running_loop, init=False)
    _queue: asyncio.Queue[StopRequest] = field(factory=asyncio.Queue, init=False)

    def put(self, request: StopRequest) -> None:
        """Add a request. May be called on any thread, and after the loop was closed."""
        with suppress(RuntimeError):  # the loop is closed, so the call of app.work has ended
            self._loop.call_soon_threadsafe(self._queue.put_nowait, request)

    async def get(self) -> StopRequest:
        """Wait for the next request and remove it."""
        return await self._queue.get()
