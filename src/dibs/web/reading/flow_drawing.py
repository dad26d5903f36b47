"""The drawing of a flow: boxes of its nodes or groups, joined by lines.

The page has two drawings of each flow: one for a desk and one for a phone, whose text stays readable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from dibs.flow.groups import (
    FOLDS,
    Group,
    by_level,
    drop_implied,
    each_node,
    group_nodes,
    join_chains,
)
from dibs.flow.stored_flow import NodeStatus
from dibs.model.wakeup import FLOWS
from dibs.web.reading.flow_nodes import NodeRun

#: A flow with at most this many nodes has a box for each node.
FEW_NODES: Final = 24
#: Most boxes of a drawing. Nodes of a larger flow share boxes.
MAX_BOXES: Final = 40
#: Size of a box, that of one with a line for arguments, and the distances between boxes, in pixels.
BOX_HEIGHT: Final = 52
TALL_BOX: Final = 70
COLUMN_GAP: Final = 14
ROW_GAP: Final = 36
#: Distance between the rows of one level that has more boxes than a row.
INNER_GAP: Final = 12
#: Average width of a character of a name, in pixels, at the size of the text in a box.
CHARACTER: Final = 7.6

#: States of nodes in the order in which texts count them, each with the class of its color.
TONES: Final[Mapping[str, str]] = {
    "failed": "bad",
    "cancelled": "care",
    "lost": "bad",
    "active": "run",
    "handed_off": "run",
    "queued": "due",
    "scheduled": "due",
    "waiting": "idle",
    "completed": "ok",
    "skipped": "idle",
}
#: Tones in the order in which the worst one gives its color to a box.
_BY_URGENCY: Final = ("bad", "care", "run", "due", "idle", "ok")


@frozen
class Bar:
    """A part of the bar at the lower edge of a box: the share of its nodes with one tone."""

    x: float
    width: float
    tone: str


@frozen
class Box:
    """A node, or nodes that share a box. Sizes are in pixels."""

    x: float
    y: float
    width: float
    #: Name, shortened to the width, and the full name.
    name: str
    full_name: str
    #: Arguments of its one node, "" without one, and the number of nodes by state, in words.
    arguments: str
    states: str
    tone: str
    bars: tuple[Bar, ...]
    #: Index of the group, for the address of its list of nodes.
    group: int
    #: The node of a box with one node, else None, and the ms that it ran, if it has ended.
    node: NodeStatus | None
    ran: int | None


@frozen
class DrawnLine:
    """A line from a box to one below it."""

    path: str
    #: True if the lower node runs also after a failure of the upper one.
    is_ignored: bool


@frozen
class Drawing:
    """Boxes and lines, the size of the drawing and the height of each box in pixels."""

    width: float
    height: float
    box_height: int
    boxes: tuple[Box, ...]
    lines: tuple[DrawnLine, ...]


def choose_groups(nodes: Sequence[NodeStatus]) -> list[Group]:
    """Return the most detailed groups that fit into MAX_BOXES boxes."""
    if len(nodes) <= FEW_NODES:
        return group_nodes(nodes, each_node)
    for classify in FOLDS:
        every = group_nodes(nodes, classify)
        for groups in (every, join_chains(every, nodes)):
            if len(groups) <= MAX_BOXES:
                return drop_implied(groups)
    return _fold_levels(nodes)


def _fold_levels(nodes: Sequence[NodeStatus]) -> list[Group]:
    """Return groups of successive levels, for a flow with more levels than boxes."""
    levels = by_level(nodes)
    size = -(-(max(levels) + 1) // MAX_BOXES)
    numbers: list[list[int]] = [[] for _ in range(max(levels) // size + 1)]
    for node, level in zip(nodes, levels, strict=True):
        numbers[level // size].append(node.number)
    return [
        Group(tuple(each), frozenset((index - 1,) if index else ())) for index, each in enumerate(numbers)
    ]


def draw(
    groups: Sequence[Group],
    nodes: Sequence[NodeStatus],
    runs: Mapping[int, NodeRun],
    width: int,
    columns: int,
) -> Drawing:
    """Return the drawing of groups, which are in an order with parents first.

    `runs` are the known runs of nodes: a box with one node shows its arguments and its duration.
    """
    rows = _rows(groups, columns)
    box_width = (width - (columns - 1) * COLUMN_GAP) / columns
    places: dict[int, tuple[float, float]] = {}
    has_arguments = len(groups) == len(nodes) and any(run.arguments for run in runs.values())
    height = TALL_BOX if has_arguments else BOX_HEIGHT
    y = 1.0
    for level in rows:
        for row in level:
            left = (width - len(row) * box_width - (len(row) - 1) * COLUMN_GAP) / 2
            for column, index in enumerate(row):
                places[index] = (left + column * (box_width + COLUMN_GAP), y)
            y += height + INNER_GAP
        y += ROW_GAP - INNER_GAP
    boxes = tuple(
        _box(index, group, nodes, runs, places[index], box_width) for index, group in enumerate(groups)
    )
    lines = tuple(
        _line(places[parent], places[index], (box_width, height), is_ignored=parent not in group.parents)
        for index, group in enumerate(groups)
        for parent in sorted(group.edges)
    )
    return Drawing(width, y - ROW_GAP + 2, height, boxes, lines)


def _rows(groups: Sequence[Group], columns: int) -> list[list[list[int]]]:
    """Return the indices of the groups by level, and the rows of each level.

    On a level, boxes are in the order of the mean place of their parents, so that few lines cross.
    """
    level_of: list[int] = []
    for group in groups:
        level_of.append(1 + max((level_of[parent] for parent in group.edges), default=-1))
    rows: list[list[list[int]]] = []
    place: dict[int, float] = {}
    for level in range(max(level_of) + 1):
        members = [index for index, its_level in enumerate(level_of) if its_level == level]
        wanted = {
            index: sum(map(place.__getitem__, edges)) / len(edges) if (edges := groups[index].edges) else 0.0
            for index in members
        }
        members.sort(key=lambda index: (wanted[index], index))
        rows.append([members[begin : begin + columns] for begin in range(0, len(members), columns)])
        for position, index in enumerate(members):
            place[index] = (position + 0.5) / len(members)
    return rows


def _box(
    index: int,
    group: Group,
    nodes: Sequence[NodeStatus],
    runs: Mapping[int, NodeRun],
    place: tuple[float, float],
    width: float,
) -> Box:
    members = [nodes[number] for number in group.numbers]
    run = runs.get(members[0].number) if len(members) == 1 else None
    name, most = _group_name(members, group), int((width - 24) / CHARACTER)
    tones = Counter(TONES[node.state] for node in members)
    return Box(
        x=round(place[0], 1),
        y=place[1],
        width=round(width, 1),
        name=name if len(name) <= most else f"{name[: most - 1]}…",
        full_name=name,
        arguments="" if run is None else run.arguments,
        states=states_text(members),
        tone=next(tone for tone in _BY_URGENCY if tones[tone]),
        bars=_bars(tones, place[0], width),
        group=index,
        node=members[0] if len(members) == 1 else None,
        ran=None if run is None else run.ran,
    )


def _bars(tones: Mapping[str, int], x: float, width: float) -> tuple[Bar, ...]:
    bars, left, total = [], x + 12, sum(tones.values())
    for tone in ("ok", "run", "bad", "care", "due", "idle"):
        if count := tones.get(tone, 0):
            part = (width - 24) * count / total
            bars.append(Bar(round(left, 1), round(part, 1), tone))
            left += part
    return tuple(bars)


def _group_name(members: Sequence[NodeStatus], group: Group) -> str:
    if len(members) == 1:
        return node_name(members[0])
    queues = {node.queue for node in members}
    name = (
        f"{len(members):,} \N{MULTIPLICATION SIGN} {queues.pop()}"
        if len(queues) == 1
        else f"{len(members):,} nodes"
    )
    return f"{name}, chains of {group.steps:,}" if group.steps > 1 else name


def node_name(node: NodeStatus) -> str:
    """Return the queue of a node; for a nested flow its id."""
    return f"flow {node.id}" if node.queue == FLOWS else node.queue


def states_text(members: Sequence[NodeStatus]) -> str:
    """Return the states of nodes as text: "completed" for one node, "90 completed, 8 queued" for more."""
    counts = Counter(node.state for node in members)
    words = [(count, state.replace("_", " ")) for state in TONES if (count := counts[state])]  # type: ignore[index]
    if len(members) == 1:
        return words[0][1]
    return ", ".join(f"{count:,} {state}" for count, state in words)


def _line(
    upper: tuple[float, float], lower: tuple[float, float], size: tuple[float, float], *, is_ignored: bool
) -> DrawnLine:
    width, height = size
    x1, y1 = upper[0] + width / 2, upper[1] + height
    x2, y2 = lower[0] + width / 2, lower[1]
    bend = max(14.0, (y2 - y1) / 2)
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    return DrawnLine(path, is_ignored)
