"""Batches for the commands of `dibs flow`: the output of their state and of the numbers of their members."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from dibs.cli import json_output
from dibs.cli.flow_texts import FLOW_STATES
from dibs.cli.options import Format
from dibs.cli.output import print_json, print_lines
from dibs.cli.tables import print_tab_separated
from dibs.flow.batch.plan import BatchStatus

#: The states of members that a text names, in this order.
_MEMBER_STATES: Final = ("failed", "cancelled", "lost", "missing", "open")


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
