"""Maps the numbers of the storage to those of the oracle, and checks that they grow in the same way.

A seq orders jobs, a revision identifies an enqueue, and a fence identifies a claim. The storage and the
oracle both draw them. The contract only requires that they grow: strictly for one id, and from one call to
the next. A number is mapped when it is first seen, and must then stay the same.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Literal

from attrs import define, field

#: The distance between the first numbers of two calls of the oracle. No call draws as many numbers.
STRIDE = 100_000

NumberKind = Literal["seq", "revision", "fence"]
Scope = tuple[str, str]


class Mismatch(AssertionError):
    """The storage returned a result that differs from that of the oracle."""


class WrongTime(Mismatch):
    """The call took effect at another time than the one that the search tried."""


class NumberSource:
    """Draws the seqs, revisions and fences of the oracle.

    Each number is larger than all earlier ones. Divided by STRIDE, it gives the number of its call.
    """

    def __init__(self) -> None:
        self.call = 0
        self._drawn = 0

    def next_call(self) -> None:
        self.call += 1
        self._drawn = 0

    def draw(self) -> int:
        self._drawn += 1
        return self.call * STRIDE + self._drawn


@define
class DrawnNumbers:
    """The numbers of one kind in one queue. `by_call` has triples: oracle's number, storage's number, id."""

    calls: list[int] = field(factory=list)
    by_call: dict[int, list[tuple[int, int, str]]] = field(factory=dict)

    def add(self, call: int, expected: int, actual: int, id: str) -> None:
        if call not in self.by_call:
            insort(self.calls, call)
        self.by_call.setdefault(call, []).append((expected, actual, id))

    def bounds(self, call: int) -> tuple[int, int | None]:
        """Return the bounds between which a number of this call must lie.

        They are the largest number of the calls before it (or 0), and the smallest one after it (or None).
        """
        at = bisect_left(self.calls, call)
        low = max((a for _, a, _ in self.by_call[self.calls[at - 1]]), default=0) if at else 0
        after = at + (at < len(self.calls) and self.calls[at] == call)
        if after == len(self.calls):
            return low, None
        return low, min(a for _, a, _ in self.by_call[self.calls[after]])


class NumberMap:
    """A map between the numbers of the storage and those of the oracle. A scope is a queue and an id."""

    def __init__(self) -> None:
        self._actual: dict[tuple[NumberKind, Scope, int], int] = {}
        self._expected: dict[tuple[NumberKind, Scope, int], int] = {}
        self._drawn: dict[tuple[NumberKind, str], DrawnNumbers] = {}
        self._revisions: dict[Scope, list[tuple[int, int]]] = {}

    def expected(self, kind: NumberKind, scope: Scope, actual: int) -> int:
        """Return the oracle's number for a number of the storage, or -1 for an unknown one."""
        return self._expected.get((kind, scope, actual), -1)

    def actual(self, kind: NumberKind, scope: Scope, expected: int) -> int | None:
        return self._actual.get((kind, scope, expected))

    def revisions(self, scope: Scope) -> list[tuple[int, int]]:
        """Return the known revisions of an id as pairs: the oracle's, and the storage's."""
        return self._revisions.get(scope, [])

    def match_number(self, kind: NumberKind, scope: Scope, expected: int, actual: int) -> None:
        """Map a number when it is first seen; later, raise Mismatch if it has changed."""
        if not expected or not actual:
            if expected != actual:
                raise Mismatch(
                    f"{kind} of {scope[1]!r} is {actual}; expected {'a drawn number' if expected else 0}"
                )
            return
        known = self._actual.get((kind, scope, expected))
        if known is None:
            self._map_new(kind, scope, expected, actual)
        elif known != actual:
            raise Mismatch(f"{kind} of {scope[1]!r} is {actual}; expected {known}, as before")

    def copy_for_import(self, queue: str) -> NumberMap:
        """Return the map for a copy of the queue in another location, without the fences of the queue.

        The records of an import need not contain all fences.
        """
        other = NumberMap()
        stays = {
            key: actual for key, actual in self._actual.items() if (key[0], key[1][0]) != ("fence", queue)
        }
        for (kind, scope, expected), actual in stays.items():
            other._add_pair(kind, scope, expected, actual)
        return other

    def add_imported(self, kind: NumberKind, scope: Scope, expected: int, actual: int, call: int) -> None:
        """Map a number that came with an imported record. Numbers that are drawn later must be larger."""
        self._add_drawn(kind, scope, expected, actual, call)

    def _map_new(self, kind: NumberKind, scope: Scope, expected: int, actual: int) -> None:
        if (kind, scope, actual) in self._expected:
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} was drawn before; expected a new number")
        call = expected // STRIDE
        drawn = self._drawn.setdefault((kind, scope[0]), DrawnNumbers())
        low, high = drawn.bounds(call)
        if actual <= low or (high is not None and actual >= high):
            raise Mismatch(
                f"{kind} {actual} of {scope[1]!r} must be above {low} and below {high or 'infinity'}"
            )
        for other, number, id in drawn.by_call.get(call, ()):
            ordered = kind == "seq" or id == scope[1]
            if ordered and (other < expected) != (number < actual):
                raise Mismatch(
                    f"{kind} {actual} of {scope[1]!r} and {number} of {id!r} are in the wrong order"
                )
        self._add_drawn(kind, scope, expected, actual, call)

    def _add_drawn(self, kind: NumberKind, scope: Scope, expected: int, actual: int, call: int) -> None:
        self._add_pair(kind, scope, expected, actual)
        self._drawn.setdefault((kind, scope[0]), DrawnNumbers()).add(call, expected, actual, scope[1])

    def _add_pair(self, kind: NumberKind, scope: Scope, expected: int, actual: int) -> None:
        self._actual[kind, scope, expected] = actual
        self._expected[kind, scope, actual] = expected
        if kind == "revision":
            self._revisions.setdefault(scope, []).append((expected, actual))


class ConcurrentNumberMap(NumberMap):
    """A number map for overlapping calls.

    The numbers of one id must grow. The storage may draw numbers for different ids in any order.
    """

    def copy(self) -> ConcurrentNumberMap:
        other = ConcurrentNumberMap()
        other._actual = dict(self._actual)
        other._expected = dict(self._expected)
        other._revisions = {scope: list(pairs) for scope, pairs in self._revisions.items()}
        other._drawn = {key: copy_drawn(drawn) for key, drawn in self._drawn.items()}
        return other

    def _map_new(self, kind: NumberKind, scope: Scope, expected: int, actual: int) -> None:
        if (kind, scope, actual) in self._expected:
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} was given before; expected a new number")
        queue, id = scope
        drawn = self._drawn.get((kind, queue))
        for other, number, owner in drawn.by_call.get(0, ()) if drawn is not None else ():
            if owner == id and (other < expected) != (number < actual):
                raise Mismatch(f"{kind} {actual} of {id!r} is out of order with {number}")
        self._add_drawn(kind, scope, expected, actual, 0)


def copy_drawn(drawn: DrawnNumbers) -> DrawnNumbers:
    return DrawnNumbers(
        list(drawn.calls),
        {call: list(drawn_numbers) for call, drawn_numbers in drawn.by_call.items()},
    )
