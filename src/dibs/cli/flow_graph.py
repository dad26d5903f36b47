"""The drawing of a flow: a row for each node or group of similar nodes, in a terminal or as Mermaid."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Final

import rich_click as click
from attrs import define, field, frozen

from dibs.cli.output import escape
from dibs.cli.tables import GAP, cell_width, fold
from dibs.flow.groups import FOLDS, Group, children_of, drop_implied, each_node, group_nodes, join_chains
from dibs.flow.stored_flow import FlowStatus, NodeStatus
from dibs.model.wakeup import FLOWS

#: The place of the symbol of a group in `GroupLines.line`.
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
class GroupLines:
    """The lines of one group."""

    #: The line above the symbol, which connects the group with its parents; empty if none is needed.
    above: str
    #: The line with the symbol.
    line: str
    #: The line below it, for text that is folded.
    below: str


def lay_out(groups: Sequence[Group]) -> list[GroupLines]:
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

    def place(self, index: int, parents: frozenset[int]) -> GroupLines:
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
        return GroupLines(above, line, self._draw(None))

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


#: The states of nodes in the order in which a text counts them.
NODE_STATES: Final = (
    "failed",
    "cancelled",
    "lost",
    "completed",
    "active",
    "handed_off",
    "queued",
    "scheduled",
    "waiting",
    "skipped",
)
NOT_COMPLETED: Final = ("failed", "cancelled", "lost")
RUNNING: Final = ("active", "handed_off")
OPEN: Final = ("queued", "scheduled", "waiting")
#: The state of a flow job -> the words after the id of the flow.
FLOW_STATES: Final = {
    "waiting": "waits for a worker with flows=True",
    "active": "starts",
    "handed_off": "runs",
    "completed": "has completed",
    "failed": "has failed",
    "cancelled": "was cancelled",
}


def flow_text(status: FlowStatus) -> str:
    """Return the state of a flow with the numbers of its nodes, as one line."""
    counts = {"failed": status.failed, "skipped": status.skipped, "open": status.open}
    numbers = [f"{status.completed:,} of {_count_nodes(status.total)} completed"]
    numbers += [f"{number:,} {name}" for name, number in counts.items() if number]
    return f"flow {status.id} {FLOW_STATES.get(status.state, status.state)}: {', '.join(numbers)}"


def _count_nodes(number: int) -> str:
    return "1 node" if number == 1 else f"{number:,} nodes"


def is_ended(state: str) -> bool:
    """Return whether a flow job in this state has ended."""
    return state not in ("waiting", "active", "handed_off")


def group_text(status: FlowStatus, group: Group) -> str:
    """Return the name of a row: the number and the queue of a node, or the count and the queue of nodes."""
    suffix = " (also after a failure)" if group.ignored else ""
    if len(group.numbers) == 1:
        return node_text(status, status.nodes[group.numbers[0]]) + suffix
    queues = {status.nodes[number].queue for number in group.numbers}
    count = len(group.numbers)
    text = f"{count:,} x {queues.pop()}" if len(queues) == 1 else f"{count:,} nodes of {len(queues):,} queues"
    return text + _chain_text(group) + suffix


def _chain_text(group: Group) -> str:
    if group.steps == 1:
        return ""
    is_one = group.steps == len(group.numbers)
    return " in a chain" if is_one else f" in chains of {group.steps:,}"


def node_text(status: FlowStatus, node: NodeStatus) -> str:
    """Return the number and the queue of a node, and its id if the caller has chosen the id."""
    if node.queue == FLOWS:
        return f"#{node.number} flow {node.id}"
    is_own = node.id.startswith(f"{status.id}/")
    return f"#{node.number} {node.queue}" if is_own else f"#{node.number} {node.queue}/{node.id}"


def count_states(nodes: Iterable[NodeStatus]) -> dict[str, int]:
    """Return the number of nodes in each state that occurs, in the order of NODE_STATES."""
    counts = Counter(node.state for node in nodes)
    return {state: counts[state] for state in NODE_STATES if counts[state]}


def states_text(counts: dict[str, int]) -> str:
    """Return the states of nodes as text: "completed" for one node, "90 completed, 8 queued" for more."""
    words = [(f"{count:,}", state.replace("_", " ")) for state, count in counts.items()]
    if sum(counts.values()) == 1:
        return words[0][1]
    return ", ".join(" ".join(word) for word in words)


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

    row: GroupLines
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


def _describe(status: FlowStatus, group: Group, row: GroupLines) -> _Line:
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


#: The class of a box and its style.
STYLES: Final = {
    "completed": "fill:#d3f9d8,stroke:#2b8a3e,color:#000",
    "failed": "fill:#ffe3e3,stroke:#c92a2a,color:#000",
    "running": "fill:#fff3bf,stroke:#e67700,color:#000",
    "open": "fill:#f8f9fa,stroke:#868e96,color:#000",
    "skipped": "fill:#f8f9fa,stroke:#868e96,color:#868e96,stroke-dasharray:4",
}
#: Characters that end a text of Mermaid, or begin HTML in it.
_ENTITIES: Final = str.maketrans({"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "`": "#96;"})


def mermaid_lines(status: FlowStatus) -> Iterator[str]:
    """Yield the lines of a flowchart. An edge whose failure is ignored is dotted."""
    groups = choose_groups(status.nodes)
    yield "flowchart TD"
    for index, group in enumerate(groups):
        yield f'    n{index}["{_quote(group_text(status, group))}<br>{_states(status, group)}"]'
    for index, group in enumerate(groups):
        yield from (f"    n{parent} --> n{index}" for parent in sorted(group.parents))
        yield from (f"    n{parent} -.-> n{index}" for parent in sorted(group.ignored - group.parents))
    yield from (f"    classDef {name} {style}" for name, style in STYLES.items())
    for name in STYLES:
        members = [f"n{index}" for index, group in enumerate(groups) if _style(status, group) == name]
        if members:
            yield f"    class {','.join(members)} {name}"


def _quote(text: str) -> str:
    return escape(text).translate(_ENTITIES)


def _counts(status: FlowStatus, group: Group) -> dict[str, int]:
    return count_states(status.nodes[number] for number in group.numbers)


def _states(status: FlowStatus, group: Group) -> str:
    return states_text(_counts(status, group))


def _style(status: FlowStatus, group: Group) -> str:
    counts = _counts(status, group)
    for name, states in (("failed", NOT_COMPLETED), ("running", RUNNING), ("open", OPEN)):
        if any(state in counts for state in states):
            return name
    return "completed" if "completed" in counts else "skipped"
