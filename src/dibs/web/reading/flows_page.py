"""The pages of flows: the list, one flow with its nodes, and one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from attrs import frozen

from dibs.errors import Refused
from dibs.flow.batch.plan import (
    CLOSED_ATTRIBUTE,
    BatchStatus,
    BatchSummary,
    callback_id,
    decode_batch_plan,
    find_batch,
    find_reservations,
    flow_attributes,
    is_batch,
    is_set,
    segment_id,
)
from dibs.flow.groups import Group
from dibs.flow.plan import COMPLETED, SKIPPED, WAITING, FlowMemo, decode_memo, is_open
from dibs.flow.running.ending import NODES_ATTRIBUTE
from dibs.flow.stored_flow import FlowStatus, NodeStatus, StoredFlow, find_plan
from dibs.model.job import Slot
from dibs.model.results import State
from dibs.model.wakeup import FLOWS, flow_of
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import ErrorView, error_view, hidden_message, hidden_text
from dibs.web.reading.flow_drawing import FEW_NODES, TONES, Drawing, choose_groups, draw, node_name
from dibs.web.reading.flow_nodes import NodeRun, Span, TimeBar, read_runs
from dibs.web.reading.job import slot_state
from dibs.web.reading.source import Source

#: Flows that one page reads. Each comes with its plan, up to 1 MiB.
PAGE_SIZE: Final = 25
#: Name of a tab -> the state of the flow jobs that it lists.
STATES: Final[Mapping[str, State]] = {
    "running": "handed_off",
    "waiting": "waiting",
    "failed": "failed",
    "completed": "completed",
    "cancelled": "cancelled",
}


@frozen
class Numbers:
    """The numbers of nodes of a flow, or of members of a batch."""

    total: int
    completed: int
    failed: int
    skipped: int
    open: int


@frozen
class FlowRow:
    """A flow or a batch in the list. Times are ms since the epoch."""

    id: str
    kind: str
    #: Id of the flow or batch that has this flow as a node or a segment; "" for none.
    part_of: str
    enqueued_at: int | None
    ended_at: int | None
    #: None before the first report.
    numbers: Numbers | None
    error_type: str
    message: str


@frozen
class FlowsPage:
    """A page of the flows in one state."""

    state: str
    rows: tuple[FlowRow, ...]
    #: Name of a state -> number of flow jobs, with those that are part of another flow.
    counts: Mapping[str, int]
    is_approximate: bool
    #: Number of flows of this page that are part of another one, and therefore not shown.
    hidden: int
    #: True if flows that are part of another flow or a batch are shown, too.
    nested: bool
    #: Cursor of the next page; None on the last one.
    after: str | None
    is_first: bool


async def read_flows(source: Source, params: Mapping[str, str]) -> FlowsPage:
    """Return one page of the flows in a state. Raises Refused for a cursor that is not allowed."""
    storage, cursor = await source.storage(), params.get("after") or None
    counts = (await storage.counts([FLOWS]))[FLOWS]
    numbers = {name: getattr(counts, state) for name, state in STATES.items()}
    state = params.get("state", "")
    if state not in STATES:
        state = next((name for name in ("running", "waiting", "failed") if numbers[name]), "running")
    page = await storage.list(FLOWS, STATES[state], after=cursor, limit=PAGE_SIZE)
    nested = params.get("nested") == "1"
    rows = tuple(_flow_row(source, id, slot) for id, slot in page.items)
    shown = tuple(row for row in rows if nested or not row.part_of)
    return FlowsPage(
        state=state,
        rows=shown,
        counts=numbers,
        is_approximate=counts.approximate,
        hidden=len(rows) - len(shown),
        nested=nested,
        after=page.after,
        is_first=cursor is None,
    )


def _flow_row(source: Source, id: str, slot: Slot) -> FlowRow:
    part = slot.current or slot.outcome
    error = None if slot.outcome is None or slot.current is not None else slot.outcome.error
    kind = "batch" if is_batch(flow_attributes(slot)) else "flow"
    return FlowRow(
        id=id,
        kind=kind,
        part_of=flow_of(flow_attributes(slot)) or "",
        enqueued_at=None if part is None else part.enqueued_at,
        ended_at=None if slot.current is not None or slot.outcome is None else slot.outcome.ended_at,
        numbers=flow_numbers(slot) if kind == "flow" else _batch_numbers(id, slot),
        error_type="" if error is None else error.type,
        message=hidden_message(source, FLOWS, error),
    )


def _batch_numbers(id: str, slot: Slot) -> Numbers | None:
    try:
        batch = find_batch(id, slot)
    except ValueError:  # a program has set the progress of the job itself
        return None
    return None if batch is None else member_numbers(batch.summary)


def member_numbers(summary: BatchSummary | None) -> Numbers | None:
    """Return the numbers of members; None before the first report."""
    if summary is None:
        return None
    failed = summary.failed + summary.cancelled + summary.lost + summary.missing
    return Numbers(summary.members, summary.completed, failed, 0, summary.open)


def flow_numbers(slot: Slot) -> Numbers | None:
    """Return the numbers of nodes without a read of the nodes: from the last report, or from the notes.

    None before the first report, for an ended flow whose notes are not kept, and for a job that is no flow.
    """
    try:
        return _known_numbers(slot)
    except ValueError:
        return None


def _known_numbers(slot: Slot) -> Numbers | None:
    run = None if slot.current is None else slot.current.run
    if run is not None and run.progress is not None:
        return msgspec.json.decode(run.progress, type=Numbers)
    outcome = slot.outcome
    if slot.current is not None or outcome is None:
        return None
    if outcome.data is not None and outcome.data.memo is not None:
        return _count_notes(decode_memo(outcome.data.memo))
    digits = outcome.kept_attributes.get(NODES_ATTRIBUTE)
    notes = [] if digits is None else list(map(int, msgspec.json.decode(digits, type=str)))
    return _count_notes(FlowMemo(0, 0, notes)) if notes else None


def _count_notes(memo: FlowMemo) -> Numbers:
    completed = sum(note == COMPLETED or note < 0 for note in memo.notes)
    skipped = sum(note == SKIPPED for note in memo.notes)
    opened = sum(note == WAITING or is_open(note) for note in memo.notes)
    total = len(memo.notes)
    return Numbers(total, completed, total - completed - skipped - opened, skipped, opened)


#: Segments that the page reads. Each comes with its plan, up to 1 MiB.
MAX_SEGMENTS: Final = 20


@frozen
class SegmentRow:
    """A segment: a flow of up to 1,000 members."""

    id: str
    state: str
    numbers: Numbers | None


@frozen
class CallbackRow:
    """A callback of a batch, and the state of its job; "nothing" before its enqueue."""

    name: str
    queue: str
    id: str
    state: str


@frozen
class BatchView:
    """The members of a batch. The numbers are None before the first report."""

    numbers: Numbers | None
    #: Number of members that were added, with those of segments that no report has counted.
    reserved: int
    #: True if only members of the batch add further members.
    is_closed: bool
    producer_lost: bool
    #: The latest segments, and the number of all.
    segments: tuple[SegmentRow, ...]
    segment_count: int
    callbacks: tuple[CallbackRow, ...]


async def read_batch(storage: Storage, id: str, slot: Slot, status: BatchStatus) -> BatchView:
    """Return the members of the batch whose job is in `slot`."""
    attributes, summary = flow_attributes(slot), status.summary
    part = slot.current or slot.outcome
    stamp = 0 if part is None else part.first
    reserved = find_reservations(attributes)
    ids = [
        segment_id(id, stamp, producer, number)
        for producer, one in reserved.items()
        for number in range(one.segments)
    ]
    latest = ids[-MAX_SEGMENTS:]
    slots = await storage.get(FLOWS, latest) if latest else ()
    return BatchView(
        numbers=member_numbers(summary),
        reserved=max(sum(one.members for one in reserved.values()), summary.members if summary else 0),
        is_closed=slot.current is None or is_set(attributes, CLOSED_ATTRIBUTE),
        producer_lost=summary is not None and summary.producer_lost,
        segments=tuple(
            SegmentRow(each, slot_state(one), flow_numbers(one))
            for each, one in zip(latest, slots, strict=True)
        ),
        segment_count=len(ids),
        callbacks=await _callbacks(storage, id, stamp, slot),
    )


async def _callbacks(storage: Storage, id: str, stamp: int, slot: Slot) -> tuple[CallbackRow, ...]:
    data = slot.current.data if slot.current is not None else slot.outcome.data if slot.outcome else None
    if data is None:
        return ()
    try:
        plans = decode_batch_plan(data.payload).callbacks
    except ValueError:
        return ()
    rows = []
    for name, plan in plans.items():
        queue, job = plan.queue_of(0), callback_id(id, stamp, name)
        [found] = await storage.get(queue, [job])
        rows.append(CallbackRow(name, queue, job, slot_state(found)))
    return tuple(rows)


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
    #: Its latest run, and the place of this run in the time of the flow; None if they were not read.
    run: NodeRun | None = None
    bar: TimeBar | None = None


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
    if flow is None:
        return _without_plan(id, slot)
    groups = choose_groups(flow.nodes) if flow.nodes else []
    state, group = params.get("nodes", ""), _group_number(params, groups)
    chosen = _select(flow.nodes, state, None if group is None else groups[group])
    wanted = flow.nodes if len(flow.nodes) <= FEW_NODES else chosen[:MAX_LISTED]
    runs = await read_runs(source, storage, find_plan(slot), wanted)
    return _page(source, flow, slot, groups, chosen, runs, state=state, group=group)


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


def _page(
    source: Source,
    flow: FlowStatus,
    slot: Slot,
    groups: Sequence[Group],
    chosen: Sequence[NodeStatus],
    runs: Mapping[int, NodeRun],
    *,
    state: str,
    group: int | None,
) -> FlowPage:
    counts = Counter(node.state for node in flow.nodes)
    failed = [node for node in flow.nodes if node.state in CAUSES]
    ended = slot.outcome if slot.current is None else None
    part = slot.current or slot.outcome
    span = None if part is None else Span.since(part.enqueued_at, None if ended is None else ended.ended_at)
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
        desk=draw(groups, flow.nodes, runs, *DESK) if groups else None,
        phone=draw(groups, flow.nodes, runs, *PHONE) if groups else None,
        is_folded=len(groups) < len(flow.nodes),
        failed=tuple(_node_row(source, node, None, None) for node in failed[:MAX_LISTED]),
        failures=len(failed),
        nodes=tuple(_node_row(source, node, runs.get(node.number), span) for node in chosen[:MAX_LISTED]),
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


def _node_row(source: Source, node: NodeStatus, run: NodeRun | None, span: Span | None) -> NodeRow:
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
        run=run,
        bar=None if run is None or span is None else span.bar(run),
    )
