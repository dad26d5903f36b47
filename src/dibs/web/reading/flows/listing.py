"""The list of flows and batches in one state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from attrs import frozen

from dibs.flow.batch.plan import BatchSummary, find_batch, flow_attributes, is_batch
from dibs.flow.plan import COMPLETED, SKIPPED, WAITING, FlowMemo, decode_memo, is_open
from dibs.flow.running.ending import NODES_ATTRIBUTE
from dibs.model.job import Slot
from dibs.model.results import State
from dibs.model.wakeup import FLOWS, flow_of
from dibs.web.reading.errors import hidden_message
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
    rows = tuple(_row(source, id, slot) for id, slot in page.items)
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


def _row(source: Source, id: str, slot: Slot) -> FlowRow:
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
