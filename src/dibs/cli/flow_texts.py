"""The words for a flow: its state, the names of its nodes, and their states."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from dibs.flow.groups import Group
from dibs.flow.stored_flow import FlowStatus, NodeStatus
from dibs.model.wakeup import FLOWS

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
