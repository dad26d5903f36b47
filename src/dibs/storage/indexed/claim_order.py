"""What may be claimed now, in the order of claims."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

#: (-priority, run_at, seq, id): the order of claims (contract 2).
Due = tuple[int, int, int, str]


class ClaimOrder:
    """Entries, the smallest first. Most come in this order, and stay in it: O(1) however long the line is.

    Only what belongs before an entry that is here already (a higher priority, a job that fell due late)
    goes through a heap.
    """

    def __init__(self) -> None:
        self._in_order: deque[Due] = deque()
        self._others: list[Due] = []

    def __len__(self) -> int:
        return len(self._in_order) + len(self._others)

    def __iter__(self) -> Iterator[Due]:
        yield from self._in_order
        yield from self._others

    def add(self, entry: Due) -> None:
        """Put an entry in its place."""
        in_order = self._in_order
        if not in_order or in_order[-1] < entry:
            in_order.append(entry)
        else:
            heappush(self._others, entry)

    def pop(self) -> Due | None:
        """Take out the smallest; None when there is none."""
        others, in_order = self._others, self._in_order
        if others and (not in_order or others[0] < in_order[0]):
            return heappop(others)
        return in_order.popleft() if in_order else None

    def replace_all(self, entries: Iterable[Due]) -> None:
        """Let these be all there are."""
        self._in_order = deque(sorted(entries))
        self._others = []
