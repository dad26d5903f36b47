"""The clocks that the rates of one queue charge: one for the queue, and one for each key."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

#: The name of the clock of the queue; a key has at least one letter.
QUEUE_CLOCK: Final = ""
#: The number of stale entries in the heap that is always allowed.
MOST_STALE: Final = 1000


class StartClocks:
    """The clocks by key, in us since the epoch, and the order in which they have no more effect."""

    def __init__(self) -> None:
        self.values: dict[str, int] = {}
        #: A heap of (clock, key). Each clock has one entry, which may be earlier than the clock is now.
        self._ends: list[tuple[int, str]] = []

    def set(self, key: str, clock: int | None) -> None:
        """Set a clock; None removes it."""
        if clock is None:
            self.values.pop(key, None)
            return
        if key not in self.values:
            heappush(self._ends, (clock, key))
        self.values[key] = clock
        if len(self._ends) > 2 * len(self.values) + MOST_STALE:
            self._ends = [(end, key) for key, end in self.values.items()]
            heapify(self._ends)

    def first_past(self, now: int) -> str | None:
        """Return the key of a clock that is not later than `now`, in ms since the epoch, or None."""
        ends = self._ends
        while ends and ends[0][0] <= now * 1000:
            end, key = ends[0]
            clock = self.values.get(key)
            if clock == end:
                return key
            heappop(ends)
            if clock is not None:
                heappush(ends, (clock, key))
        return None
