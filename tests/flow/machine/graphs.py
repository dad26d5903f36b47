"""Random graphs of flows, as plain values that know neither plans nor storages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from attrs import frozen
from hypothesis import strategies as st

#: The ends of a run. After "retry" the job runs again; `finish` ends a "hand off" later.
Fate = Literal["complete", "fail", "retry", "hand off", "hand off and fail"]
FATES: tuple[Fate, ...] = ("complete", "fail", "retry", "hand off", "hand off and fail")
#: Queues of the jobs, and ids that flows share.
QUEUES = ("work.a", "work.b")
SHARED = 3


@frozen
class NodeSpec:
    """A node: its parents by number, and how its runs end; the last fate repeats."""

    #: Parents whose results are arguments.
    arguments: tuple[int, ...] = ()
    #: Further parents.
    after: tuple[int, ...] = ()
    #: True if the node runs even if a parent of `after` does not complete.
    ignore: bool = False
    fates: tuple[Fate, ...] = ("complete",)
    queue: int = 0
    #: The number of the id that other flows share, or None.
    shared: int | None = None
    nested: FlowSpec | None = None

    @property
    def required(self) -> frozenset[int]:
        """The parents that must complete."""
        return frozenset(self.arguments) | (frozenset() if self.ignore else frozenset(self.after))

    @property
    def ignored(self) -> frozenset[int]:
        """The parents that must end in any way."""
        return frozenset(self.after) - self.required


@frozen
class FlowSpec:
    """A flow: nodes whose parents are before them."""

    nodes: tuple[NodeSpec, ...]
    #: The number of the node whose result is that of the flow.
    returns: int | None = None

    def all_nodes(self) -> Iterator[NodeSpec]:
        """Yield the nodes of the flow and of its nested flows."""
        for node in self.nodes:
            yield node
            if node.nested is not None:
                yield from node.nested.all_nodes()


def label_of(flow: str, number: int, node: NodeSpec) -> str:
    """Return the name of a node in the ledger; nodes with one shared id have one name."""
    return f"{flow}.{number}" if node.shared is None else f"shared{node.shared}"


@st.composite
def flow_specs(draw: st.DrawFn, depth: int = 2, most: int = 6) -> FlowSpec:
    """Draw a flow with diamonds, ignored edges, shared ids and nested flows."""
    nodes: list[NodeSpec] = []
    for number in range(draw(st.integers(1, most))):
        parents = st.lists(st.integers(0, number - 1), max_size=3, unique=True) if number else st.just([])
        kind = draw(st.sampled_from(("own", "own", "own", "shared", "nested" if depth > 1 else "own")))
        nested = draw(flow_specs(depth=depth - 1, most=3)) if kind == "nested" else None
        nodes.append(
            NodeSpec(
                arguments=tuple(draw(parents)) if kind == "own" else (),
                after=tuple(draw(parents)),
                ignore=draw(st.booleans()),
                fates=tuple(draw(st.lists(st.sampled_from(FATES), min_size=1, max_size=2))),
                queue=draw(st.integers(0, 1)),
                shared=draw(st.integers(0, SHARED - 1)) if kind == "shared" else None,
                nested=nested,
            )
        )
    returns = draw(st.none() | st.integers(0, len(nodes) - 1))
    return FlowSpec(tuple(nodes), returns)
