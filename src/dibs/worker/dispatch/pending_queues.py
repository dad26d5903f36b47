"""The queues that the next step of the worker loop looks at, so that the other queues cost it no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Final

from attrs import define, field

from dibs.worker.dispatch.queue_state import QueueState

#: Largest number of queues of each priority whose turn a step considers.
MAX_TURNS: Final = 64


@define(eq=False)
class PendingQueues:
    """The queues that have changed since the last step, or have a job or a settlement to handle."""

    _changed: dict[QueueState, None] = field(factory=dict, init=False)
    #: By priority, the queues of short runs that wait for their turn to claim, see `choose_queues`.
    _turns: dict[int, dict[QueueState, None]] = field(factory=dict, init=False)

    def add(self, queue: QueueState) -> None:
        """Make the next step look at this queue."""
        self._changed[queue] = None

    def take(self, has_room: Callable[[Iterable[QueueState]], bool]) -> Sequence[QueueState]:
        """Return the queues for a step. The step must call `keep` with them at its end.

        `has_room` returns whether the queues that have changed leave room for claims of queues in turns.
        """
        taken = self._changed
        self._changed = {}
        if self._turns and has_room(taken):
            taken.update(chain.from_iterable(islice(one.items(), MAX_TURNS) for one in self._turns.values()))
        return list(taken)

    def keep(self, queues: Iterable[QueueState]) -> None:
        """Add those of the queues that a later step must also look at."""
        for queue in queues:
            if queue.waits_for_turn:
                self._turns.setdefault(queue.priority, {})[queue] = None
                continue
            self._turns.get(queue.priority, {}).pop(queue, None)
            if queue.needs_step:
                self.add(queue)

    @property
    def any_ready(self) -> bool:
        """True if a queue is ready for a claim."""
        return any(self._turns.values()) or any(queue.readiness.ready for queue in self._changed)
