"""The naive reading of a flow: a replay of its nodes in topological order, from the ends in the ledger."""

from __future__ import annotations

from attrs import define, field

from tests.flow.machine.graphs import FlowSpec, NodeSpec, label_of
from tests.flow.machine.ledger import Ledger


@define
class Reading:
    """The expected end of a flow."""

    #: The state of each node. Several are possible if other programs end or enqueue the job, too.
    states: list[set[str]] = field(factory=list)
    #: The numbers of the nodes that make the flow fail.
    causes: list[int] = field(factory=list)

    @property
    def kind(self) -> str:
        """The kind of the end of the flow."""
        return "failed" if self.causes else "completed"


def read(ledger: Ledger, label: str, spec: FlowSpec, seen: list[str], retried: set[str]) -> Reading:
    """Replay a flow. `seen` are the states that dibs shows; they decide where several are possible.

    `retried` are the labels of nodes that an operator has retried.
    """
    reading = Reading()
    chosen: list[str] = []
    for number, node in enumerate(spec.nodes):
        name = label_of(label, number, node)
        if any(chosen[parent] != "completed" for parent in node.required):
            possible = {"skipped"}
        else:
            possible = possible_states(ledger, name, node, retried)
        reading.states.append(possible)
        chosen.append(seen[number] if seen[number] in possible else min(possible, default="missing"))
    reading.causes = [
        number
        for number in range(len(chosen))
        if chosen[number] in ("failed", "cancelled", "lost")
        and (number == spec.returns or not is_tolerated(spec, number))
    ]
    return reading


def possible_states(ledger: Ledger, name: str, node: NodeSpec, retried: set[str]) -> set[str]:
    """Return the possible states of a node after all required parents completed."""
    kinds = ledger.kinds(name)
    if node.shared is not None or name in retried:
        # The flow waits for one outcome, and the outcome of a later run may have replaced it.
        return {*kinds, "lost"} if ledger.enqueues[name] + ledger.retries[name] > 1 else set(kinds)
    return set(kinds[-1:])


def is_tolerated(spec: FlowSpec, number: int) -> bool:
    """Return whether a failed node does not fail its flow: each of its edges is ignored, and it has one."""
    is_required = any(number in node.required for node in spec.nodes)
    return not is_required and any(number in node.ignored for node in spec.nodes)
