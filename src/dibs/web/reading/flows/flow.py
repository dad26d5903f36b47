"""The page of a flow: its graph with the state of each node, its failures, and a list of its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from dibs.errors import Refused
from dibs.flow.batch.plan import find_batch, flow_attributes
from dibs.flow.groups import Group
from dibs.flow.stored_flow import FlowStatus, NodeStatus, StoredFlow
from dibs.model.job import Slot
from dibs.model.wakeup import FLOWS, flow_of
from dibs.web.reading.errors import ErrorView, error_view, hidden_text
from dibs.web.reading.flows.batch import BatchView, read_batch
from dibs.web.reading.flows.drawing import TONES, Drawing, choose_groups, draw, node_name
from dibs.web.reading.source import Source

#: Width in pixels and most boxes in a row of the two drawings.
DESK: Final = (1060, 5)
PHONE: Final = (340, 2)
#: Nodes that the page lists at most.
MAX_LISTED: Final = 50
#: States of nodes that are the causes of a failed flow.
CAUSES: Final = ("failed", "cancelled", "lost")
#: The states of a flow job that has not ended.
LIVE: Final = ("waiting", "active", "handed_off")


@frozen
class NodeRow:
    """A node in the list."""

    number: int
    queue: str
    id: str
    name: str
    state: str
    parents: tuple[int, ...]
    #: Type and message of the error; "" without one.
    error_type: str
    message: str


@frozen
class FlowPage:
    """A flow or a batch. Times are ms since the epoch."""

    id: str
    #: "flow" or "batch"; "" if the storage has neither a job nor an outcome of this id.
    kind: str
    state: str = ""
    #: Id of the flow or the batch that has this flow as a node or a segment; "" for none.
    part_of: str = ""
    enqueued_at: int | None = None
    ended_at: int | None = None
    #: Number of nodes in each state that occurs, in the order of TONES.
    counts: tuple[tuple[str, int], ...] = ()
    total: int = 0
    error: ErrorView | None = None
    #: The graph for a desk and for a phone.
    desk: Drawing | None = None
    phone: Drawing | None = None
    #: True if several nodes share a box.
    is_folded: bool = False
    #: The first nodes that did not complete, and the number of all of them.
    failed: tuple[NodeRow, ...] = ()
    failures: int = 0
    #: The selected nodes: their first ones, their number, and the selection.
    nodes: tuple[NodeRow, ...] = ()
    selected: int = 0
    node_state: str = ""
    group: int | None = None
    batch: BatchView | None = None

    @property
    def is_live(self) -> bool:
        return self.state in LIVE


async def read_flow(source: Source, params: Mapping[str, str]) -> FlowPage:
    """Return the page of the flow or batch `id`. Raises Refused for a bad id or a job that is no flow."""
    storage, id = await source.storage(), params.get("id", "")
    [slot] = await storage.get(FLOWS, [id])
    if slot.current is None and slot.outcome is None:
        return FlowPage(id, "")
    if (status := find_batch(id, slot)) is not None:
        return FlowPage(
            id=id,
            kind="batch",
            state=status.state,
            part_of=flow_of(flow_attributes(slot)) or "",
            enqueued_at=status.enqueued_at,
            ended_at=status.ended_at,
            error=error_view(source, FLOWS, status.error),
            batch=await read_batch(storage, id, slot, status),
        )
    try:
        flow = await StoredFlow(source.flow_context, id).status()
    except ValueError as error:
        raise Refused(f"the job {FLOWS}/{id} has no plan of a flow: {error}", field="id") from error
    return _without_plan(id, slot) if flow is None else _page(source, flow, slot, params)


def _without_plan(id: str, slot: Slot) -> FlowPage:
    """Return the page of an ended flow whose plan is not kept."""
    outcome = slot.outcome
    if outcome is None:
        return FlowPage(id, "")
    return FlowPage(
        id,
        "flow",
        outcome.kind,
        part_of=flow_of(outcome.kept_attributes) or "",
        enqueued_at=outcome.enqueued_at,
        ended_at=outcome.ended_at,
    )


def _page(source: Source, flow: FlowStatus, slot: Slot, params: Mapping[str, str]) -> FlowPage:
    groups = choose_groups(flow.nodes) if flow.nodes else []
    counts = Counter(node.state for node in flow.nodes)
    failed = [node for node in flow.nodes if node.state in CAUSES]
    state, group = params.get("nodes", ""), _group_number(params, groups)
    chosen = _select(flow.nodes, state, None if group is None else groups[group])
    ended = slot.outcome if slot.current is None else None
    part = slot.current or slot.outcome
    return FlowPage(
        id=flow.id,
        kind="flow",
        state=flow.state,
        part_of=flow_of(flow_attributes(slot)) or "",
        enqueued_at=None if part is None else part.enqueued_at,
        ended_at=None if ended is None else ended.ended_at,
        counts=tuple((name, counts[name]) for name in TONES if counts[name]),  # type: ignore[index]
        total=flow.total,
        error=error_view(source, FLOWS, flow.error),
        desk=draw(groups, flow.nodes, *DESK) if groups else None,
        phone=draw(groups, flow.nodes, *PHONE) if groups else None,
        is_folded=len(groups) < len(flow.nodes),
        failed=tuple(_row(source, node) for node in failed[:MAX_LISTED]),
        failures=len(failed),
        nodes=tuple(_row(source, node) for node in chosen[:MAX_LISTED]),
        selected=len(chosen),
        node_state=state if state in TONES else "",
        group=group,
    )


def _group_number(params: Mapping[str, str], groups: Sequence[Group]) -> int | None:
    text = params.get("group", "")
    is_number = text.isascii() and text.isdigit() and len(text) < 4
    return int(text) if is_number and int(text) < len(groups) else None


def _select(nodes: Sequence[NodeStatus], state: str, group: Group | None) -> list[NodeStatus]:
    chosen = nodes if group is None else [nodes[number] for number in group.numbers]
    return [node for node in chosen if state not in TONES or node.state == state]


def _row(source: Source, node: NodeStatus) -> NodeRow:
    kind, _, message = node.error.partition(": ")
    return NodeRow(
        number=node.number,
        queue=node.queue,
        id=node.id,
        name=node_name(node),
        state=node.state,
        parents=tuple(sorted({*node.parents, *node.ignored})),
        error_type=kind,
        message=hidden_text(source, node.queue, message)[:300] if message else "",
    )
