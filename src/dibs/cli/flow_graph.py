"""The drawing of a flow in a terminal: a row for each node, or for each group of similar nodes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Final

import rich_click as click
from attrs import frozen

from dibs.cli.flow_lanes import SYMBOL, Row, lay_out
from dibs.cli.flow_texts import NOT_COMPLETED, OPEN, RUNNING, count_states, group_text, states_text
from dibs.cli.output import escape
from dibs.cli.tables import GAP, cell_width, fold
from dibs.flow.groups import FOLDS, Group, drop_implied, each_node, group_nodes, join_chains
from dibs.flow.stored_flow import FlowStatus, NodeStatus

#: A flow with at most this many nodes, and this many columns of lines, is drawn with a row for each node.
FEW_NODES: Final = 12
FEW_COLUMNS: Final = 6
#: The most columns of lines. Each takes two characters of the 80.
MAX_COLUMNS: Final = 10
#: A drawing with more rows leaves out rows in which all nodes have completed or wait.
MAX_ROWS: Final = 60
#: The number of rows at the begin, with open or failed nodes, and at the end that it then keeps.
KEPT_ROWS: Final = (20, 25, 10)
#: The least width of the column of states if names are folded, and the least width of both.
LEAST_STATES: Final = 32
LEAST_NAMES: Final = 12
#: Characters for an output encoding without the others.
ASCII: Final = str.maketrans("│─├┤┼╰╯┴╭╮┬●◐○✗◌⋮", "|-+++`'+,.+*@ox-:")


@frozen
class _Line:
    """The texts of one row."""

    row: Row
    symbol: str
    color: str | None
    name: str
    states: str


def choose_groups(nodes: Sequence[NodeStatus]) -> list[Group]:
    """Return the groups of the most detailed drawing that is narrow and short enough."""
    if len(nodes) <= FEW_NODES:
        groups = group_nodes(nodes, each_node)
        if _count_columns(groups) <= FEW_COLUMNS:
            return groups
    groups = []
    for classify in FOLDS:
        every = group_nodes(nodes, classify)
        for groups in (every, join_chains(every, nodes)):
            if len(groups) <= MAX_ROWS:
                if _count_columns(groups) <= MAX_COLUMNS:
                    return groups
                if _count_columns(fewer := drop_implied(groups)) <= MAX_COLUMNS:
                    return fewer
    # Levels without implied edges are one chain, so only its rows are too many.
    return drop_implied(groups)


def _count_columns(groups: Sequence[Group]) -> int:
    return max((len(row.line) + 1) // 2 for row in lay_out(groups))


def graph_lines(status: FlowStatus, limit: int | None) -> list[str]:
    """Return the drawing of a flow as styled lines, at most `limit` characters wide."""
    groups = choose_groups(status.nodes)
    lines = [_describe(status, group, row) for group, row in zip(groups, lay_out(groups), strict=True)]
    gutter = GAP + max(max(len(line.row.above), len(line.row.line), len(line.row.below)) for line in lines)
    widths = _text_widths(lines, None if limit is None else limit - gutter)
    drawn: list[str] = []
    for is_kept, run in groupby(zip(_kept(groups, status), lines, groups, strict=True), lambda each: each[0]):
        if is_kept:
            drawn += [text for _, line, _ in run for text in _row_lines(line, gutter, widths)]
        else:
            drawn.append(_omission(status, [group for _, _, group in run]))
    return drawn if _can_encode() else [line.translate(ASCII) for line in drawn]


def _describe(status: FlowStatus, group: Group, row: Row) -> _Line:
    counts = count_states(status.nodes[number] for number in group.numbers)
    symbol, color = _symbol(counts)
    return _Line(row, symbol, color, escape(group_text(status, group)), states_text(counts))


def _symbol(counts: dict[str, int]) -> tuple[str, str | None]:
    """Return the symbol and the color of the state that matters most."""
    if any(state in counts for state in NOT_COMPLETED):
        return "✗", "red"
    if any(state in counts for state in RUNNING):
        return "◐", "yellow"
    if any(state in counts for state in OPEN):
        return "○", None
    return ("●", "green") if "completed" in counts else ("◌", None)


def _text_widths(lines: Sequence[_Line], limit: int | None) -> tuple[int, int]:
    """Return the widths of the columns of names and states."""
    names = max(cell_width(line.name) for line in lines)
    states = max(len(line.states) for line in lines)
    if limit is None:
        return names, states
    names = min(names, max(LEAST_NAMES, limit - GAP - min(states, LEAST_STATES)))
    return names, max(LEAST_NAMES, limit - GAP - names)


def _row_lines(line: _Line, gutter: int, widths: tuple[int, int]) -> Iterator[str]:
    if line.row.above:
        yield line.row.above.rstrip()
    names, states = widths
    cells = zip_longest(fold(line.name, names), fold(line.states, states), fillvalue="")
    for number, (name, state) in enumerate(cells):
        edge = (line.row.below if number else line.row.line).ljust(gutter)
        edge = edge.replace(SYMBOL, click.style(line.symbol, fg=line.color, bold=True))
        pad = " " * (names - cell_width(name) + GAP)
        yield f"{edge}{name}{pad}{click.style(state, fg=line.color) if state else ''}".rstrip()


def _kept(groups: Sequence[Group], status: FlowStatus) -> list[bool]:
    """Return for each row whether it is drawn."""
    if len(groups) <= MAX_ROWS:
        return [True] * len(groups)
    first, interesting, last = KEPT_ROWS
    kept = [number < first or number >= len(groups) - last for number in range(len(groups))]
    for number, group in enumerate(groups):
        states = {status.nodes[each].state for each in group.numbers}
        if interesting and not kept[number] and states & {*NOT_COMPLETED, *RUNNING, "queued"}:
            kept[number] = True
            interesting -= 1
    return kept


def _omission(status: FlowStatus, groups: Sequence[Group]) -> str:
    counts = count_states(status.nodes[number] for group in groups for number in group.numbers)
    return f"⋮ {len(groups):,} more rows: {states_text(counts)}"


def _can_encode() -> bool:
    try:
        "│●".encode(sys.stdout.encoding or "utf-8")
    except (LookupError, UnicodeEncodeError):
        return False
    return True
