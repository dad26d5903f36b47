"""The positions of claimed rows, with which a settlement finds them faster than by id."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

#: The fewest settlements of one call that are sent with positions. For fewer, the statement costs more than
#: the lookups by id.
FEWEST_POSITIONS: Final = 16
#: The greatest number of positions that a storage keeps. Runs that end elsewhere leave theirs behind.
MOST_POSITIONS: Final = 20_000


class RowPositions:
    """Fence of a run -> the position (ctid) of its row at the claim, as text.

    A position is only a hint: the server compares the row there with id and fence. A row has moved if it was
    written since the claim. Then the server finds it by id.
    """

    def __init__(self) -> None:
        self._spots: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._spots)

    def add(self, fences: Iterable[int], spots: Iterable[str]) -> None:
        if len(self._spots) > MOST_POSITIONS:
            self._spots.clear()
        self._spots.update(zip(fences, spots, strict=True))

    def take(self, fences: Sequence[int]) -> list[str] | None:
        """Remove and return the positions of some runs; None if one of them is unknown."""
        spots = [self._spots.pop(fence, None) for fence in fences]
        known = [spot for spot in spots if spot is not None]
        return known if len(known) == len(spots) else None
