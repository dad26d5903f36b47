"""The sorted ids of a queue, for the verbs list, split and export. Only a queue that is listed sorts them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol


class Ids(Sized, Iterable[str], Protocol):
    """The ids that a queue has now, in any order."""

    def __contains__(self, id: object, /) -> bool: ...


class Listing:
    """A sorted list of ids, created at the first listing and updated from then on.

    A sorted tree would cost each enqueue 2 to 3 us. Instead, new ids are appended, and the next page sorts
    the list; a nearly sorted list takes one pass. Removed ids stay in the list and are skipped. Once they are
    the larger part, the list is created again.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._sorted: list[str] | None = None
        self._dirty = False

    def add(self, id: str) -> None:
        if self._sorted is not None:
            self._sorted.append(id)
            self._dirty = True
            if self._is_mostly_gone(self._sorted):
                # Ids came and went without a listing. Free the memory of the list; the next listing creates
                # it again.
                self._sorted = None

    def ids_after(self, id: str | None, until: str | None = None) -> Iterator[str]:
        """Yield the ids after `id` and up to `until`, in order; None is no bound."""
        ordered = self._sort_ids()
        start = 0 if id is None else bisect_right(ordered, id)
        end = len(ordered) if until is None else bisect_right(ordered, until)
        latest = None
        for position in range(start, end):
            found = ordered[position]
            # An id that was removed and added again is in the list twice.
            if found != latest and found in self._ids:
                yield found
            latest = found

    def _sort_ids(self) -> list[str]:
        if self._sorted is None or self._is_mostly_gone(self._sorted):
            self._sorted = sorted(self._ids)
        elif self._dirty:
            self._sorted.sort()
        self._dirty = False
        return self._sorted

    def _is_mostly_gone(self, ids: list[str]) -> bool:
        return len(ids) > 2 * len(self._ids) + 1000
