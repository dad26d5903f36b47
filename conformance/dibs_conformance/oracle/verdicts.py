"""What the oracle says where the contract leaves a choice, and the numbers it draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: More numbers than one call ever draws.
STRIDE = 100_000


@dataclass(frozen=True)
class OneOf:
    """Any of these answers keeps the contract."""

    answers: tuple[Any, ...]


class Numbers:
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
