"""Which number of the storage stands for which number of the oracle, and whether they grow alike.

seq, revision and fence are the storage's own. What is promised is that they grow: strictly for one id,
and from one call to the next. So each is paired with the oracle's when it is first seen, and held to that.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import Literal

#: More numbers than one call ever draws.
STRIDE = 100_000

Kind = Literal["seq", "revision", "fence"]
Scope = tuple[str, str]


class Mismatch(AssertionError):
    """The storage and the contract say different things."""


class NumberSource:
    """Draws seq, revision and fence: each is larger than every earlier one, and tells its call."""

    def __init__(self) -> None:
        self.call = 0
        self._drawn = 0

    def next_call(self) -> None:
        self.call += 1
        self._drawn = 0

    def draw(self) -> int:
        self._drawn += 1
        return self.call * STRIDE + self._drawn


@dataclass
class DrawnNumbers:
    """The numbers of one kind that one queue drew, by call."""

    calls: list[int] = field(default_factory=list)
    by_call: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)

    def add(self, call: int, expected: int, actual: int, id: str) -> None:
        if call not in self.by_call:
            insort(self.calls, call)
        self.by_call.setdefault(call, []).append((expected, actual, id))

    def bounds(self, call: int) -> tuple[int, int | None]:
        """What the calls right before and right after this one allow."""
        at = bisect_left(self.calls, call)
        low = max((a for _, a, _ in self.by_call[self.calls[at - 1]]), default=0) if at else 0
        after = at + (at < len(self.calls) and self.calls[at] == call)
        if after == len(self.calls):
            return low, None
        return low, min(a for _, a, _ in self.by_call[self.calls[after]])


class NumberMap:
    """The pairs of one storage."""

    def __init__(self) -> None:
        self._actual: dict[tuple[Kind, Scope, int], int] = {}
        self._expected: dict[tuple[Kind, Scope, int], int] = {}
        self._drawn: dict[tuple[Kind, str], DrawnNumbers] = {}
        self._revisions: dict[Scope, list[tuple[int, int]]] = {}

    def expected(self, kind: Kind, scope: Scope, actual: int) -> int:
        """The oracle's number for one of the storage's; -1 for a number nobody drew."""
        return self._expected.get((kind, scope, actual), -1)

    def actual(self, kind: Kind, scope: Scope, expected: int) -> int | None:
        return self._actual.get((kind, scope, expected))

    def revisions(self, scope: Scope) -> list[tuple[int, int]]:
        """The known revisions of an id, the oracle's beside the storage's."""
        return self._revisions.get(scope, [])

    def same(self, kind: Kind, scope: Scope, expected: int, actual: int) -> None:
        """Hold a number to its pair, or pair it. Raises Differs."""
        if not expected or not actual:
            if expected != actual:
                raise Mismatch(f"{kind} of {scope[1]!r} is {actual}")
            return
        known = self._actual.get((kind, scope, expected))
        if known is None:
            self._pair(kind, scope, expected, actual)
        elif known != actual:
            raise Mismatch(f"{kind} of {scope[1]!r} is {actual}; it was {known} and nothing changed it")

    def moved(self, queue: str) -> NumberMap:
        """The same pairs for another place, but for the fences of this queue, which may be unknown there."""
        other = NumberMap()
        stays = {
            key: actual for key, actual in self._actual.items() if (key[0], key[1][0]) != ("fence", queue)
        }
        for (kind, scope, expected), actual in stays.items():
            other._pairs(kind, scope, expected, actual)
        return other

    def take_over(self, kind: Kind, scope: Scope, expected: int, actual: int, call: int) -> None:
        """A number came in from another place in this call: later ones must be larger."""
        self._keep(kind, scope, expected, actual, call)

    def _pair(self, kind: Kind, scope: Scope, expected: int, actual: int) -> None:
        if (kind, scope, actual) in self._expected:
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} was given before; a fresh one was due")
        call = expected // STRIDE
        drawn = self._drawn.setdefault((kind, scope[0]), DrawnNumbers())
        low, high = drawn.bounds(call)
        if actual <= low or (high is not None and actual >= high):
            raise Mismatch(f"{kind} {actual} of {scope[1]!r} does not grow: earlier {low}, later {high}")
        for other, number, id in drawn.by_call.get(call, ()):
            ordered = kind == "seq" or id == scope[1]
            if ordered and (other < expected) != (number < actual):
                raise Mismatch(
                    f"{kind} {actual} of {scope[1]!r} and {number} of {id!r} are in the wrong order"
                )
        self._keep(kind, scope, expected, actual, call)

    def _keep(self, kind: Kind, scope: Scope, expected: int, actual: int, call: int) -> None:
        self._pairs(kind, scope, expected, actual)
        self._drawn.setdefault((kind, scope[0]), DrawnNumbers()).add(call, expected, actual, scope[1])

    def _pairs(self, kind: Kind, scope: Scope, expected: int, actual: int) -> None:
        self._actual[kind, scope, expected] = actual
        self._expected[kind, scope, actual] = expected
        if kind == "revision":
            self._revisions.setdefault(scope, []).append((expected, actual))
