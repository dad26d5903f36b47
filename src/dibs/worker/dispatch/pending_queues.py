"""The queues that the next step of the worker loop looks at, so that idle queues cost it no time."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from dibs.worker.dispatch.queue_state import QueueState


@define(eq=False)
class PendingQueues:
    """The queues that have changed since the last step, or have a job or a settlement to handle."""

    _queues: dict[QueueState, None] = field(factory=dict, init=False)

    def add(self, queue: QueueState) -> None:
        self._queues[queue] = None

    def take(self) -> Sequence[QueueState]:
        """Remove and return the queues for a step. The step must call `keep` with them at its end."""
        taken = list(self._queues)
        self._queues.clear()
        return taken

    def keep(self, queues: Sequence[QueueState]) -> None:
        """Add those of the queues that the next step must look at, too."""
        for queue in queues:
            if queue.needs_step:
                self.add(queue)

    @property
    def any_ready(self) -> bool:
        """True if a queue is ready for a claim."""
        return any(queue.readiness.ready for queue in self._queues)
