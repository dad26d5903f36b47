"""Turns of a part of the queues, so that the maintenance of any number of idle queues costs few requests."""

from __future__ import annotations

import random
from collections.abc import Sequence

from attrs import define, field


@define(eq=False)
class Rotation:
    """A list of queues. Each turn takes the next part of it.

    The first turn begins at a random queue: programs that restart often then also reach the last queues.
    """

    _queues: Sequence[str]
    #: The largest number of queues in a turn.
    _most: int
    _next: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._next = random.randrange(len(self._queues)) if self._queues else 0  # noqa: S311 - no secret

    def next_turn(self) -> Sequence[str]:
        """Return the queues of the next turn: all of them if they are few enough."""
        if len(self._queues) <= self._most:
            return self._queues
        first, self._next = self._next, (self._next + self._most) % len(self._queues)
        return [*self._queues[first:], *self._queues[:first]][: self._most]
