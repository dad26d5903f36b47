"""The queues that the next step of the worker loop looks at, so that the other queues cost it no time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from typing import Final

from attrs import define, field

from dibs.worker.dispatch.queue_state import QueueState, Turn

#: Largest number of queues of one kind of turn that a step considers. A worker of thousands of queues, which
#: are all ready at its start, would otherwise look at each of them in each step.
MAX_TURNS: Final = 64


@define(eq=False)
class PendingQueues:
    """The queues that have changed since the last step, or have a job or a settlement to handle."""

    _changed: dict[QueueState, None] = field(factory=dict, init=False)
    #: By `QueueState.turn`, the queues that wait for their turn to claim, the longest wait first.
    _turns: dict[Turn, dict[QueueState, None]] = field(factory=dict, init=False)

    def add(self, queue: QueueState) -> None:
        """Make the next step look at this queue."""
        self._changed[queue] = None

    def take(self, has_room: Callable[[Iterable[QueueState]], bool]) -> Sequence[QueueState]:
        """Return the queues for a step. The step must call `keep` with them at its end.

        `has_room` returns whether the queues that have changed leave room for claims of short runs.
        """
        taken = self._changed
        self._changed = {}
        if self._turns:
            room = has_room(taken)
            turns = [queues for turn, queues in self._turns.items() if room or not turn.is_short]
            taken.update(chain.from_iterable(islice(queues.items(), MAX_TURNS) for queues in turns))
        return list(taken)

    def keep(self, queues: Iterable[QueueState], now: float) -> None:
        """Add those of the queues that a later step must also look at."""
        for queue in queues:
            if (turn := queue.turn(now)) is not None:
                self._turns.setdefault(turn, {})[queue] = None
                continue
            self._remove_turn(queue)
            if queue.needs_step(now):
                self.add(queue)

    def _remove_turn(self, queue: QueueState) -> None:
        for turn, waiting in tuple(self._turns.items()):
            if waiting.pop(queue, self) is None and not waiting:
                del self._turns[turn]

    @property
    def any_ready(self) -> bool:
        """True if a queue is ready for a claim."""
        return bool(self._turns) or any(queue.readiness.ready for queue in self._changed)
