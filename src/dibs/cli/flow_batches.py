"""Batches for the commands of `dibs flow`: their state and the numbers of their members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attrs import frozen
from msgspec import structs

from dibs.cli import json_output
from dibs.cli.flow_texts import FLOW_STATES
from dibs.cli.options import Format
from dibs.cli.output import print_json, print_lines
from dibs.cli.tables import print_tab_separated
from dibs.flow.batch.plan import is_batch
from dibs.flow.batch.summary import BatchSummary, decode_summary
from dibs.model.job import Error, Slot

#: The states of members that a text names, in this order.
_MEMBER_STATES: Final = ("failed", "cancelled", "lost", "missing", "open")


@frozen
class BatchStatus:
    """The state of a batch, and the numbers of its members: None before the first report."""

    id: str
    state: str
    summary: BatchSummary | None
    error: Error | None
    enqueued_at: int | None
    ended_at: int | None


def flow_attributes(slot: Slot) -> Mapping[str, bytes]:
    """Return the attributes of a flow or a batch, also after its end."""
    if slot.current is not None:
        return slot.current.data.attributes
    return {} if slot.outcome is None else slot.outcome.kept_attributes


def find_batch(id: str, slot: Slot) -> BatchStatus | None:
    """Return the status of a batch; None for another job."""
    if not is_batch(flow_attributes(slot)):
        return None
    if (job := slot.current) is not None:
        state = "waiting" if job.run is None else "handed_off" if job.run.lease is None else "active"
        progress = None if job.run is None else job.run.progress
        return BatchStatus(id, state, _decode(progress), job.error, job.enqueued_at, None)
    outcome = slot.outcome
    assert outcome is not None  # noqa: S101 - a slot with attributes has a job or an outcome
    summary = _decode(outcome.result)
    return BatchStatus(id, outcome.kind, summary, outcome.error, outcome.enqueued_at, outcome.ended_at)


def _decode(raw: bytes | None) -> BatchSummary | None:
    return None if raw is None else decode_summary(raw)


def print_batch(status: BatchStatus, output: Format) -> None:
    """Print a batch: one line, or JSON."""
    fields = _batch_fields(status)
    if output == "json":
        print_json(fields)
    elif output == "lines":
        print_tab_separated(((name, value) for name, value in (fields["members"] or {}).items()))
    else:
        print_lines(_batch_text(status))


def _batch_fields(status: BatchStatus) -> dict[str, Any]:
    return {
        "id": status.id,
        "kind": "batch",
        "state": status.state,
        "enqueued_at": json_output.format_time(status.enqueued_at),
        "ended_at": json_output.format_time(status.ended_at),
        "error": json_output.error_fields(status.error),
        "members": None if status.summary is None else structs.asdict(status.summary),
    }


def _batch_text(status: BatchStatus) -> str:
    text = f"batch {status.id} {FLOW_STATES.get(status.state, status.state)}"
    if (summary := status.summary) is None:
        return text
    numbers = [f"{summary.completed:,} of {summary.members:,} members completed"]
    numbers += [f"{count:,} {name}" for name in _MEMBER_STATES if (count := getattr(summary, name))]
    lost = "; its producer did not close it" if summary.producer_lost else ""
    return f"{text}: {', '.join(numbers)}{lost}"
