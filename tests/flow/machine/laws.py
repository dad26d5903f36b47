"""The laws of flows, checked at each start of a node and after the end of all flows."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.flow.machine.graphs import FlowSpec, NodeSpec, label_of
from tests.flow.machine.ledger import Ledger


class BrokenLaw(AssertionError):
    """A flow broke a law."""


def require(condition: object, law: str, *details: object) -> None:
    if not condition:
        raise BrokenLaw(f"{law}: {' '.join(map(str, details))}")


def check_start(ledger: Ledger, flow: str, spec: FlowSpec, number: int, payload: bytes) -> None:
    """Check a node that only its flow enqueues, at its claim."""
    node, name = spec.nodes[number], f"{flow}.{number}"
    for parent in node.required:
        one = label_of(flow, parent, spec.nodes[parent])
        require("completed" in ledger.kinds(one), "a node runs after its parents", name, one)
    for parent in node.ignored:
        one = label_of(flow, parent, spec.nodes[parent])
        require(has_ended(ledger, flow, spec, parent), "a node runs after its ignored parents", name, one)
    require(runs_again(ledger, flow, name), "a completed node never runs again", name, ledger.kinds(name))
    if node.nested is None:
        check_arguments(ledger, flow, spec, node, payload)


def runs_again(ledger: Ledger, flow: str, name: str) -> bool:
    """Return whether a node may run: a node completes once for each enqueue of its flow."""
    return ledger.kinds(name).count("completed") < ledger.enqueues[flow]


def has_ended(ledger: Ledger, flow: str, spec: FlowSpec, number: int) -> bool:
    """Return whether a node has ended once, or cannot run because a parent did not complete."""
    if ledger.kinds(label_of(flow, number, spec.nodes[number])):
        return True
    return any(
        has_ended(ledger, flow, spec, parent)
        # A shared id may have failed for this flow, and completed for another one since.
        and set(ledger.kinds(label_of(flow, parent, spec.nodes[parent]))) != {"completed"}
        for parent in spec.nodes[number].required
    )


def check_arguments(ledger: Ledger, flow: str, spec: FlowSpec, node: NodeSpec, payload: bytes) -> None:
    """Check that each result arrived in its place."""
    arguments: list[Any] = msgspec.json.decode(payload)["args"][1]
    require(len(arguments) == len(node.arguments), "results arrive in place", flow, payload)
    for parent, value in zip(node.arguments, arguments, strict=True):
        ends = ledger.ends[label_of(flow, parent, spec.nodes[parent])]
        results = [end.result for end in ends if end.kind == "completed"]
        expected = results if spec.nodes[parent].shared is not None else results[-1:]
        require(value in expected, "results arrive in place", flow, parent, value, expected)


def check_planned_ends(ledger: Ledger, flow: str, spec: FlowSpec, by_operator: dict[str, int]) -> None:
    """Check that no node ended more often than planned: once for each start of its flow."""
    starts = ledger.enqueues[flow] + ledger.retries[flow]
    for number, node in enumerate(spec.nodes):
        if node.shared is None:
            name = f"{flow}.{number}"
            most = starts + by_operator.get(name, 0)
            require(len(ledger.kinds(name)) <= most, "a node ends as often as planned", name, most)
        if node.nested is not None:
            check_planned_ends(ledger, f"{flow}.{number}", node.nested, by_operator)
