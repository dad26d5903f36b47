"""The queues that the next step of the worker loop looks at, so that the other queues cost it no time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def take(self, *, turns: bool) -> Sequence[QueueState]:
        """Return the queues for a step. The step must call `keep` with them at its end.

        `turns` is whether the step may send claims for queues that wait for their turn.
        """
        taken = self._changed
        self._changed = {}
        if turns:
            taken.update(chain.from_iterable(islice(one.items(), MAX_TURNS) for one in self._turns.values()))
        return list(taken)

    def keep(self, queues: Iterable[QueueState]) -> None:
        """Add those of the queues that a later step must look at, too."""
        for queue in queues:
            turns = self._turns.setdefault(queue.priority, {})
            if queue.waits_for_turn:
                turns[queue] = None
                continue
            turns.pop(queue, None)
            if queue.needs_step:
                self.add(queue)

    @property
    def any_ready(self) -> bool:
        """True if a queue is ready for a claim."""
        return any(self._turns.values()) or any(queue.readiness.ready for queue in self._changed)
