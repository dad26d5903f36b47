"""The drawing of flows: its groups, its lines, its width and its length."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

import pytest

from dibs.cli import flow_graph
from dibs.cli.flow_graph import (
    JOINTS,
    MAX_COLUMNS,
    MAX_ROWS,
    SYMBOL,
    choose_groups,
    graph_lines,
    lay_out,
    mermaid_lines,
)
from dibs.flow.groups import FOLDS, Group, drop_implied, each_node, group_nodes, join_chains
from dibs.flow.stored_flow import FlowStatus, NodeStatus

ARMS = {character: arms for arms, character in JOINTS.items()}


def node(number: int, queue: str, parents: Iterable[int] = (), state: str = "waiting") -> NodeStatus:
    return NodeStatus(
        number=number,
        queue=queue,
        id=f"f/s/{number}",
        state=state,  # type: ignore[arg-type]
        parents=tuple(parents),
    )


def nodes_of(*rows: tuple[str, Iterable[int], str]) -> tuple[NodeStatus, ...]:
    return tuple(node(number, *row) for number, row in enumerate(rows))


def status_of(nodes: Sequence[NodeStatus]) -> FlowStatus:
    return FlowStatus(
        id="f",
        state="handed_off",
        total=len(nodes),
        completed=0,
        failed=0,
        skipped=0,
        open=0,
        nodes=tuple(nodes),
    )


def drawn(nodes: Sequence[NodeStatus], limit: int | None = 80) -> list[str]:
    """Return the lines of a drawing without colours."""
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in graph_lines(status_of(nodes), limit)]


def random_nodes(seed: int, size: int = 40, queues: int = 40, parents: int = 3) -> list[NodeStatus]:
    draw = random.Random(seed)
    return [
        node(
            n,
            f"q{draw.randrange(queues)}",
            sorted(draw.sample(range(n), min(n, draw.randrange(parents + 1)))),
        )
        for n in range(size)
    ]


def fan_out(size: int) -> tuple[NodeStatus, ...]:
    """Return one node, `size` dependents (90 % completed), and one node after all dependents."""
    middle = [("load", [0], "completed" if n < size * 0.9 else "queued") for n in range(size)]
    return nodes_of(("fetch", [], "completed"), *middle, ("total", range(1, size + 1), "waiting"))


# -- small drawings ---------------------------------------------------------------------------------------


def test_a_chain_is_a_column() -> None:
    nodes = nodes_of(("fetch", [], "completed"), ("parse", [0], "active"), ("store", [1], "waiting"))

    assert ["●  #0 fetch  completed", "◐  #1 parse  active", "○  #2 store  waiting"] == drawn(nodes)


def test_branches_have_columns_of_their_own() -> None:
    nodes = nodes_of(
        ("fetch", [], "completed"),
        ("a", [0], "completed"),
        ("b", [0], "failed"),
        ("c", [0], "handed_off"),
        ("join", [1, 2, 3], "skipped"),
        ("mail", [3, 4], "waiting"),
    )

    assert [
        "●      #0 fetch  completed",
        "├─╮",
        "│ ●    #1 a      completed",
        "├─│─╮",
        "│ │ ✗  #2 b      failed",
        "◐ │ │  #3 c      handed off",
        "├─┼─╯",
        "│ ◌    #4 join   skipped",
        "├─╯",
        "○      #5 mail   waiting",
    ] == drawn(nodes)


def test_a_root_below_an_unrelated_node_is_separated_by_a_line() -> None:
    assert ["●  #0 a  completed", "", "○  #1 b  waiting"] == drawn(
        nodes_of(("a", [], "completed"), ("b", [], "waiting"))
    )


def test_a_long_name_and_a_long_state_are_folded_beside_the_lines() -> None:
    many = ["failed", "cancelled", "lost", "active", "queued", "waiting", "skipped"]
    nodes = nodes_of(*(("q" * 100, [], state) for state in many * 3), ("end", range(21), "waiting"))
    lines = drawn(nodes)

    assert 80 >= max(map(len, lines))
    assert 100 == sum(line.count("q") - line.count("queued") for line in lines)
    states = " ".join(line[line.rindex("  ") :].strip() for line in lines if "  " in line[4:])
    assert all(f"3 {state}" in states for state in many)


# -- the lines lead to the parents --------------------------------------------------------------------------


def read_parents(lines: Sequence[str]) -> Iterator[set[int]]:
    """Yield for each symbol the numbers of the symbols that its lines lead to."""
    numbers: dict[tuple[int, int], int] = {}
    for y, line in enumerate(lines):
        if SYMBOL in line:
            x = line.index(SYMBOL)
            yield {numbers[end] for end in trace_parents(lines, x, y)}
            numbers[x, y] = len(numbers)


def trace_parents(lines: Sequence[str], x: int, y: int) -> Iterator[tuple[int, int]]:
    above = at(lines, x, y - 1)
    starts = [x] if above in ("│", SYMBOL) else []
    if above in ARMS:
        assert ARMS[above][3]  # an arm down, to the symbol
        starts = [column for column in joined(lines[y - 1], x) if ARMS[lines[y - 1][column]][2]]
    for start in starts:
        row = y - 1 if above not in ARMS else y - 2
        while at(lines, start, row) != SYMBOL:
            assert "│" == at(lines, start, row) or all(ARMS[at(lines, start, row)][2:])
            row -= 1
        yield start, row


def joined(line: str, x: int) -> Iterator[int]:
    """Yield the columns of the joints that a horizontal line connects with the joint at x."""
    yield x
    for step, arm in ((-2, 0), (2, 1)):
        column = x
        while line[column] in "│─" or ARMS[line[column]][arm]:
            assert "─" == line[column + step // 2]
            column += step
            if line[column] in ARMS:
                yield column


def at(lines: Sequence[str], x: int, y: int) -> str:
    return lines[y][x] if 0 <= y and x < len(lines[y]) else " "


@pytest.mark.parametrize("seed", range(60))
def test_the_lines_lead_from_each_group_to_its_parents(seed: int) -> None:
    groups = group_nodes(random_nodes(seed, parents=seed % 5), each_node)
    lines = [line for row in lay_out(groups) for line in (row.above, row.line) if line]

    assert [set(group.edges) for group in groups] == list(read_parents(lines))


# -- groups -------------------------------------------------------------------------------------------------


def image(groups: Sequence[Group], nodes: Sequence[NodeStatus]) -> list[set[int]]:
    """Return the edges between groups that the edges between their nodes make."""
    group_of = {number: index for index, group in enumerate(groups) for number in group.numbers}
    edges: list[set[int]] = [set() for _ in groups]
    for each in nodes:
        edges[group_of[each.number]] |= {group_of[parent] for parent in each.parents}
    return [found - {index} for index, found in enumerate(edges)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("classify", FOLDS)
def test_groups_have_each_node_once_and_come_after_their_parents(classify: object, seed: int) -> None:
    nodes = random_nodes(seed, 60, queues=3)
    every = group_nodes(nodes, classify)  # type: ignore[arg-type]
    for groups in (every, join_chains(every, nodes)):
        assert list(range(60)) == sorted(number for group in groups for number in group.numbers)
        assert image(groups, nodes) == [set(group.edges) for group in groups]
        assert all(max(group.edges, default=-1) < index for index, group in enumerate(groups))


def reachable(groups: Sequence[Group]) -> list[set[int]]:
    above: list[set[int]] = []
    for group in groups:
        above.append(set(group.edges).union(*(above[parent] for parent in group.edges)))
    return above


@pytest.mark.parametrize("seed", range(20))
def test_without_implied_edges_the_same_groups_are_reachable(seed: int) -> None:
    groups = group_nodes(random_nodes(seed), each_node)
    fewer = drop_implied(groups)

    assert reachable(groups) == reachable(fewer)
    assert sum(len(group.edges) for group in fewer) < sum(len(group.edges) for group in groups)


def test_pipelines_are_folded_step_by_step() -> None:
    rows: list[tuple[str, Iterable[int], str]] = []
    for _ in range(20):
        rows += [("fetch", [], "completed"), ("parse", [len(rows)], "queued")]
    nodes = nodes_of(*rows, ("total", range(1, 40, 2), "waiting"))

    assert [
        "●  20 x fetch  20 completed",
        "○  20 x parse  20 queued",
        "○  #40 total   waiting",
    ] == drawn(nodes)


# -- sizes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [60, 2_000, 9_998])
def test_a_fan_out_of_any_size_has_three_rows(size: int) -> None:
    lines = drawn(fan_out(size))

    assert 3 == len(lines)
    assert lines[1].startswith(f"○  {size:,} x load")
    assert f"{size - size // 10:,} completed, {size // 10:,} queued" in lines[1]


@pytest.mark.long
def test_a_long_chain_of_one_queue_is_one_row() -> None:
    nodes = nodes_of(*(("step", [n - 1] if n else [], "completed") for n in range(2_000)))

    assert ["●  2,000 x step in a chain  2,000 completed"] == drawn(nodes)


@pytest.mark.long
def test_rows_of_a_long_drawing_without_open_or_failed_nodes_are_left_out() -> None:
    state = {900: "failed", 901: "active"}
    rows = [(f"q{n % 2}", [n - 1] if n else [], state.get(n, "completed")) for n in range(2_000)]
    lines = drawn(nodes_of(*rows))

    assert MAX_ROWS > len(lines)
    assert "⋮ 880 more rows: 880 completed" in lines
    assert ["✗  #900 q0   failed", "◐  #901 q1   active"] == [line for line in lines if line[0] in "✗◐"]
    assert lines[-1].startswith("●  #1999")


@pytest.mark.long
@pytest.mark.parametrize(("size", "queues"), [(13, 5), (60, 5), (60, 60), (2_000, 5), (2_000, 50)])
@pytest.mark.parametrize("seed", range(3))
def test_a_drawing_is_at_most_80_columns_wide(size: int, queues: int, seed: int) -> None:
    nodes = random_nodes(seed, size, queues)
    lines = drawn(nodes)
    groups = choose_groups(nodes)

    assert 80 >= max(map(len, lines))
    assert MAX_ROWS >= len(groups)
    assert MAX_COLUMNS >= max((len(row.line) + 1) // 2 for row in lay_out(groups))


def test_an_encoding_without_the_symbols_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii:
        encoding = "ascii"

    monkeypatch.setattr(sys, "stdout", Ascii())
    nodes = random_nodes(1)

    assert all(line.isascii() for line in drawn(nodes))
    assert not flow_graph._can_encode()


# -- Mermaid ------------------------------------------------------------------------------------------------


def test_mermaid_quotes_names_and_dots_ignored_edges() -> None:
    first = node(0, 'a"<b>', state="failed")
    second = NodeStatus(number=1, queue="mail", id="chosen", state="waiting", ignored=(0,))
    text = list(mermaid_lines(status_of([first, second])))

    assert [
        "flowchart TD",
        '    n0["#35;0 a#quot;#lt;b#gt;<br>failed"]',
        '    n1["#35;1 mail/chosen (also after a failure)<br>waiting"]',
        "    n0 -.-> n1",
    ] == text[:4]
    assert ["    class n0 failed", "    class n1 open"] == text[-2:]
