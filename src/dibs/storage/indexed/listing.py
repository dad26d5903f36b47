"""Ids in order, for paging through a queue. Costs nothing until somebody lists."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sized
from typing import Protocol


class Ids(Sized, Iterable[str], Protocol):
    """The ids there are."""

    def __contains__(self, id: object, /) -> bool: ...


class Listing:
    """A sorted list of ids, made at the first listing and kept up from then on.

    A tree on the hot path would cost each enqueue 2 to 3 us. New ids go to the end of the list and are
    sorted in when the next page is asked for, which for a nearly sorted list is one pass; ids that are
    gone are skipped, and swept out when they are the larger part.
    """

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._sorted: list[str] | None = None
        self._dirty = False

    def add(self, id: str) -> None:
        """Take note of an id that was not there."""
        if self._sorted is not None:
            self._sorted.append(id)
            self._dirty = True
            if self._is_mostly_gone(self._sorted):
                # Nobody has listed for a while: it is made anew when somebody does.
                self._sorted = None

    def after(self, id: str | None, until: str | None = None) -> Iterator[str]:
        """Yield the ids behind one and up to another, in order; None is before the first, behind the last."""
        ordered = self._ordered()
        start = 0 if id is None else bisect_right(ordered, id)
        end = len(ordered) if until is None else bisect_right(ordered, until)
        latest = None
        for place in range(start, end):
            found = ordered[place]
            # An id that was removed and came again stands in the list twice.
            if found != latest and found in self._ids:
                yield found
            latest = found

    def _ordered(self) -> list[str]:
        if self._sorted is None or self._is_mostly_gone(self._sorted):
            self._sorted = sorted(self._ids)
        elif self._dirty:
            self._sorted.sort()
        self._dirty = False
        return self._sorted

    def _is_mostly_gone(self, ids: list[str]) -> bool:
        return len(ids) > 2 * len(self._ids) + 1000
