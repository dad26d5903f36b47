"""The lines of a drawing of groups: a column for each group whose children follow further below."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import define, field, frozen

from dibs.flow.groups import Group, children_of

#: The place of the symbol of a group in `Row.line`.
SYMBOL: Final = "*"
#: The character of a joint, by its arms: left, right, up, down.
JOINTS: Final = {
    (False, True, True, True): "├",
    (True, False, True, True): "┤",
    (True, True, True, True): "┼",
    (False, True, True, False): "╰",
    (True, False, True, False): "╯",
    (True, True, True, False): "┴",
    (False, True, False, True): "╭",
    (True, False, False, True): "╮",
    (True, True, False, True): "┬",
}


@frozen
class Row:
    """The lines of one group."""

    #: The line above the symbol, which connects the group with its parents; empty if none is needed.
    above: str
    #: The line with the symbol.
    line: str
    #: The line below it, for text that is folded.
    below: str


def lay_out(groups: Sequence[Group]) -> list[Row]:
    """Return the lines of each group. The groups are in the order of the drawing."""
    edges = [group.edges for group in groups]
    lanes = _Lanes([len(children) for children in children_of(edges)])
    return [lanes.place(index, parents) for index, parents in enumerate(edges)]


@define
class _Lanes:
    #: The number of children of each group that are not drawn yet.
    _missing: list[int]
    #: The group of each column, or None for a free column.
    _columns: list[int | None] = field(factory=list)
    _last: str = ""

    def place(self, index: int, parents: frozenset[int]) -> Row:
        """Return the lines of the next group."""
        for parent in parents:
            self._missing[parent] -= 1
        joined = [column for column, group in enumerate(self._columns) if group in parents]
        ending = [column for column in joined if not self._missing[self._columns[column] or 0]]
        target = ending[0] if ending else self._find_free(joined[-1] + 1 if joined else 0)
        above = self._connect(joined, ending, target) if parents else self._separate(target)
        for column in (*ending, target):
            self._columns[column] = None
        line = self._draw(target)
        self._columns[target] = index if self._missing[index] else None
        self._last = line
        return Row(above, line, self._draw(None))

    def _find_free(self, start: int) -> int:
        free = [n for n, group in enumerate(self._columns) if n >= start and group is None]
        if not free:
            self._columns.append(None)
        return free[0] if free else len(self._columns) - 1

    def _separate(self, target: int) -> str:
        """Return a line without the target, if a line above would seem to lead to it."""
        is_below = self._last[2 * target : 2 * target + 1].strip()
        return self._draw(None) or " " if is_below else ""

    def _connect(self, joined: Sequence[int], ending: Sequence[int], target: int) -> str:
        """Return the line from the parents to the target; empty if the target is straight below."""
        first, last = min(target, joined[0]), max(target, joined[-1])
        if first == last:
            return ""
        line = list(self._draw(None).ljust(2 * last + 1))
        for position in range(2 * first + 1, 2 * last):
            line[position] = "─" if line[position] == " " else line[position]
        for column in {*joined, target}:
            down = column == target or column not in ending
            line[2 * column] = JOINTS[column > first, column < last, column in joined, down]
        return "".join(line)

    def _draw(self, target: int | None) -> str:
        """Return a line with a bar in each column in use, and the symbol in the target."""
        cells = [" " if group is None else "│" for group in self._columns]
        if target is not None:
            cells[target] = SYMBOL
        return " ".join(cells).rstrip()
