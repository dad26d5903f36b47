"""A memory of the ids that changed in the latest steps of each queue. It answers waits with recent tokens."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from typing import Final

#: The number of latest steps of each queue whose ids are remembered.
REMEMBERED_STEPS: Final = 64


class RecentIds:
    """The ids of the latest steps of each queue. A token is the number of a step, as text."""

    def __init__(self) -> None:
        self._steps: defaultdict[str, deque[tuple[int, tuple[str, ...]]]] = defaultdict(
            lambda: deque(maxlen=REMEMBERED_STEPS)
        )
        #: Tokens below this number are too old: steps after them passed without a call of `add`.
        self._oldest_token = 0

    def add(self, queue: str, step: int, ids: Iterable[str]) -> None:
        self._steps[queue].append((step, tuple(ids)))

    def forget_before(self, step: int) -> None:
        """Treat every token below `step` as too old from now on."""
        self._oldest_token = step

    def since(self, queue: str, token: str | None, ids: AbstractSet[str] | None) -> set[str] | None:
        """Return those of `ids` (None for all) that were added after a token; None if that is unknown."""
        if token is None:
            return set()
        if not token.isdecimal() or int(token) < self._oldest_token:
            return None  # the steps since the token are unknown, so the waiter must check
        steps = self._steps.get(queue)
        if not steps:
            return set()
        if len(steps) == REMEMBERED_STEPS and steps[0][0] > int(token):
            return None  # some steps since the token are forgotten, so the waiter must check
        found = {id for step, added in steps if step > int(token) for id in added}
        return found if ids is None else found & ids
