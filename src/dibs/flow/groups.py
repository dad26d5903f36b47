"""Groups of the nodes of a flow, so that a drawing of thousands of nodes has few rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from attrs import evolve, frozen

from dibs.flow.stored_flow import NodeStatus

Nodes = Sequence[NodeStatus]


@frozen
class Group:
    """Nodes of a flow that a drawing shows as one row."""

    numbers: tuple[int, ...]
    #: The indices of the groups whose nodes must complete before.
    parents: frozenset[int]
    #: The indices of the groups whose nodes must end before, in any way.
    ignored: frozenset[int] = frozenset()
    #: The number of groups that were joined because each is the only parent of the next one.
    steps: int = 1

    @property
    def edges(self) -> frozenset[int]:
        """The indices of the groups with an edge to this group."""
        return self.parents | self.ignored


#: Returns a number for each node. Nodes with equal numbers make a group.
Classify = Callable[[Nodes], Sequence[int]]


def each_node(nodes: Nodes) -> Sequence[int]:
    """Put each node into a group of its own."""
    return range(len(nodes))


def by_shape(nodes: Nodes) -> list[int]:
    """Group nodes with the same queue whose ancestors and descendants have the same queues and edges."""
    return _numbered(zip(by_ancestors(nodes), _by_descendants(nodes), strict=True))


def by_ancestors(nodes: Nodes) -> list[int]:
    """Group nodes with the same queue whose ancestors have the same queues and edges."""
    known: dict[object, int] = {}
    classes: list[int] = []
    for node in nodes:
        parents, ignored = (
            frozenset(map(classes.__getitem__, numbers)) for numbers in (node.parents, node.ignored)
        )
        classes.append(known.setdefault((node.queue, parents, ignored), len(known)))
    return classes


def _by_descendants(nodes: Nodes) -> list[int]:
    known: dict[object, int] = {}
    classes = [0] * len(nodes)
    below: list[set[tuple[int, bool]]] = [set() for _ in nodes]
    for node in reversed(nodes):
        number = node.number
        classes[number] = known.setdefault((node.queue, frozenset(below[number])), len(known))
        for parents, is_required in ((node.parents, True), (node.ignored, False)):
            for parent in parents:
                below[parent].add((classes[number], is_required))
    return classes


def by_level_and_queue(nodes: Nodes) -> list[int]:
    """Return a group number for each node: those of one queue and one level (`by_level`) share it."""
    return _numbered(zip(by_level(nodes), (node.queue for node in nodes), strict=True))


def by_level(nodes: Nodes) -> list[int]:
    """Group nodes with the same level: the number of edges of the longest path to them."""
    levels: list[int] = []
    for node in nodes:
        above = (*node.parents, *node.ignored)
        levels.append(1 + max(map(levels.__getitem__, above), default=-1))
    return levels


def _numbered(keys: Iterable[object]) -> list[int]:
    known: dict[object, int] = {}
    return [known.setdefault(key, len(known)) for key in keys]


def group_nodes(nodes: Nodes, classify: Classify) -> list[Group]:
    """Return the groups in the order of a drawing: each after its parents, and close to them."""
    index = _numbered(classify(nodes))
    numbers: list[list[int]] = [[] for _ in range(max(index) + 1)]
    parents: list[set[int]] = [set() for _ in numbers]
    ignored: list[set[int]] = [set() for _ in numbers]
    for node in nodes:
        group = index[node.number]
        numbers[group].append(node.number)
        parents[group].update(map(index.__getitem__, node.parents))
        ignored[group].update(map(index.__getitem__, node.ignored))
    groups = [
        Group(tuple(members), frozenset(required), frozenset(others))
        for members, required, others in zip(numbers, parents, ignored, strict=True)
    ]
    return _renumber(groups, _drawing_order([group.edges for group in groups]))


def _drawing_order(edges: Sequence[frozenset[int]]) -> list[int]:
    """Return the indices so that parents come first, and a child soon after its last parent."""
    children = children_of(edges)
    missing = [len(parents) for parents in edges]
    ready = [index for index in reversed(range(len(edges))) if not missing[index]]
    order = []
    while ready:
        index = ready.pop()
        order.append(index)
        for child in reversed(children[index]):
            missing[child] -= 1
            if not missing[child]:
                ready.append(child)
    return order


def children_of(edges: Sequence[frozenset[int]]) -> list[list[int]]:
    """Return the indices of the children of each group, ascending."""
    children: list[list[int]] = [[] for _ in edges]
    for index, parents in enumerate(edges):
        for parent in parents:
            children[parent].append(index)
    return children


def _renumber(groups: Sequence[Group], order: Sequence[int]) -> list[Group]:
    place = {index: position for position, index in enumerate(order)}
    return [
        evolve(
            groups[index],
            parents=frozenset(map(place.__getitem__, groups[index].parents)),
            ignored=frozenset(map(place.__getitem__, groups[index].ignored)),
        )
        for index in order
    ]


def join_chains(groups: Sequence[Group], nodes: Nodes) -> list[Group]:
    """Join groups of one queue that follow each other, each as the only child of its only parent."""
    children = children_of([group.edges for group in groups])
    joined: list[Group] = []
    head: list[int] = []
    for group in groups:
        previous = min(group.edges, default=-1)
        if len(group.edges) == 1 and len(children[previous]) == 1:
            first = joined[head[previous]]
            if _are_alike(first, group, nodes):
                numbers = (*first.numbers, *group.numbers)
                joined[head[previous]] = evolve(first, numbers=numbers, steps=first.steps + 1)
                head.append(head[previous])
                continue
        head.append(len(joined))
        parents, ignored = (frozenset(map(head.__getitem__, s)) for s in (group.parents, group.ignored))
        joined.append(evolve(group, parents=parents, ignored=ignored))
    return joined


def _are_alike(first: Group, group: Group, nodes: Nodes) -> bool:
    queues = {nodes[number].queue for number in (first.numbers[0], *group.numbers)}
    return len(queues) == 1 and len(first.numbers) == len(group.numbers) * first.steps


def drop_implied(groups: Sequence[Group]) -> list[Group]:
    """Return the groups without each edge that a longer path between the same groups implies."""
    above: list[int] = []  # for each group a bit set of the groups before it
    kept: list[Group] = []
    for group in groups:
        implied = direct = 0
        for parent in group.edges:
            implied |= above[parent]
            direct |= 1 << parent
        above.append(implied | direct)
        needed = frozenset(parent for parent in group.edges if not implied >> parent & 1)
        kept.append(evolve(group, parents=group.parents & needed, ignored=group.ignored & needed))
    return kept


#: The ways to group nodes, from the most rows to the fewest.
FOLDS: Final[tuple[Classify, ...]] = (by_shape, by_ancestors, by_level_and_queue, by_level)
