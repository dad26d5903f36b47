"""The linearizability check: a search for an order of overlapping calls that explains all results.

The results are the answers of the calls, and the reads after each round of calls. All answered calls of a
round return before the next round begins, so the search only reorders calls of one round. A call without an
answer may take effect now, later or never.

The search is depth-first. It tries calls on a model of the storage, a world: a search is for whole queues
(concurrent/linearize.py) or for one id (history/linearize.py).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from attrs import define, field

from dibs_conformance.oracle.numbering import Mismatch, WrongTime


class SearchPart(Protocol):
    """An atomic part of a call."""

    @property
    def name(self) -> str: ...
    @property
    def invoked(self) -> float: ...
    @property
    def returned(self) -> float:
        """The time of the answer, infinite without one."""
        ...

    @property
    def unanswered(self) -> bool:
        """True if the call got no answer: it may take effect now, in a later round, or never."""
        ...

    @property
    def times(self) -> tuple[int, ...]:
        """The times in ms at which the part may have taken effect."""
        ...

    @property
    def is_pure(self) -> bool:
        """True for a reading without numbers. If it explains the world now, no other moment need be tried."""
        ...

    def follows(self, other: SearchPart) -> bool:
        """Return whether this part is a later item of the same call."""
        ...


PartT = TypeVar("PartT", bound=SearchPart)
World = TypeVar("World")


class SearchRound(Protocol[PartT, World]):
    """The calls of one round, and what was read after it."""

    def open_parts(self, pending: tuple[PartT, ...]) -> Sequence[PartT]:
        """Return the parts that may take effect in this round, with those pending from earlier rounds."""
        ...

    def check(self, world: World) -> World:
        """Return the world after the readings at the end. Raises Mismatch if they differ from it."""
        ...


class UndecidedOrder(Exception):
    """The search reached its limit and found no order that explains the results."""


class PartialOrder(NamedTuple, Generic[PartT, World]):
    """The world after a partial order, and the parts of the round that are still open."""

    round_number: int
    world: World
    open: Sequence[PartT]


@define
class OrderSearch(Generic[PartT, World]):
    """One search, with the reason why the longest partial order failed."""

    rounds: Sequence[SearchRound[PartT, World]]
    #: Yields each world after a part at a time in ms. Raises Mismatch if its answer is impossible.
    apply: Callable[[World, PartT, int], Iterable[World]]
    most_tries: int
    #: Returns a key that equal worlds share; None if worlds are not compared.
    key: Callable[[World], Hashable] | None = None
    tries: int = 0
    why: str = "no order explains it"
    #: The part that the longest partial order lacks; None if the readings after a round failed.
    stuck: PartT | None = None
    #: The longest partial order: its round, minus the number of open parts, and False if the next part failed
    #: only because of the time that was tried for it.
    _furthest: tuple[int, int, bool] = (-1, 0, False)
    _visited: set[Hashable] = field(factory=set)

    def explains(self, world: World) -> bool:
        """Return whether an order explains all rounds, from this world on. Raises UndecidedOrder."""
        stack = [self._first_of_round(0, world, ())]
        while stack:
            node = next(stack[-1], None)
            if node is None:
                stack.pop()
            elif node.round_number == len(self.rounds):
                return True
            elif self._is_new(node):
                stack.append(self._next(node))
        return False

    def _first_of_round(
        self, number: int, world: World, pending: tuple[PartT, ...]
    ) -> Iterator[PartialOrder[PartT, World]]:
        ended = number == len(self.rounds)
        yield PartialOrder(number, world, () if ended else self.rounds[number].open_parts(pending))

    def _is_new(self, node: PartialOrder[PartT, World]) -> bool:
        if self.key is None:
            return True
        key = node.round_number, frozenset(map(id, node.open)), self.key(node.world)
        is_new = key not in self._visited
        self._visited.add(key)
        return is_new

    def _next(self, node: PartialOrder[PartT, World]) -> Iterator[PartialOrder[PartT, World]]:
        """Yield the partial orders that are one step longer."""
        number, world, parts = node
        if all(part.unanswered for part in parts):
            try:
                after = self.rounds[number].check(world)
            except Mismatch as error:
                self._record_progress(number, 1 - len(parts), str(error))
            else:
                yield from self._first_of_round(number + 1, after, tuple(parts))
        for part in candidates(parts):
            rest = [other for other in parts if other is not part]
            for time in part.times:
                found = self._apply(node, part, time, len(rest))
                yield from (PartialOrder(number, after, rest) for after in found)
                if found and part.is_pure:
                    return

    def _apply(self, node: PartialOrder[PartT, World], part: PartT, time: int, left: int) -> list[World]:
        self.tries += 1
        if self.tries > self.most_tries:
            raise UndecidedOrder(f"no order was found in {self.most_tries} steps")
        try:
            if found := [*self.apply(node.world, part, time)]:
                return found
            error = Mismatch("this answer is impossible")
        except Mismatch as mismatch:
            error = mismatch
        right_time = not isinstance(error, WrongTime)
        self._record_progress(node.round_number, -left, f"{part.name}: {error}", part, right_time=right_time)
        return []

    def _record_progress(
        self, round_number: int, done: int, why: str, part: PartT | None = None, *, right_time: bool = True
    ) -> None:
        progress = round_number, done, right_time
        if self._furthest[0] < 0 or progress > self._furthest:
            self._furthest, self.why, self.stuck = progress, why, part


def candidates(parts: Sequence[PartT]) -> list[PartT]:
    """Return the parts that may take effect next: pure reads first, then by the time of their answer.

    A part may be next if no other open part was answered before the call of this part was sent.
    """
    first = min((part.returned for part in parts), default=0.0)
    ready = [
        part for part in parts if part.invoked <= first and not any(part.follows(other) for other in parts)
    ]
    return sorted(ready, key=lambda part: (not part.is_pure, part.returned))
