"""The numbers that `app.work()` returns: how many runs were claimed, and how they ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field

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
