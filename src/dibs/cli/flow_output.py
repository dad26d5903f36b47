"""The output of `dibs flow show`: the drawing with failed nodes below it, JSON, or lines."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from typing import Any, Final

from dibs.cli import json_output
from dibs.cli.flow_graph import graph_lines
from dibs.cli.flow_texts import NOT_COMPLETED, flow_text, node_text
from dibs.cli.options import Format
from dibs.cli.output import echo, escape, print_json, print_lines
from dibs.cli.tables import fold, print_tab_separated
from dibs.flow.stored_flow import FlowStatus, NodeStatus
from dibs.model.wakeup import FLOWS

#: The most failed nodes that are listed below the drawing.
MAX_FAILED: Final = 10
#: The most characters of an error that are printed below the drawing.
MAX_ERROR: Final = 300


def print_flow(status: FlowStatus, output: Format) -> None:
    """Print a flow and its nodes."""
    if output == "json":
        print_json(flow_fields(status))
    elif output == "lines":
        print_tab_separated(map(_node_row, status.nodes))
    else:
        limit = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print_lines(*_fold(flow_text(status), limit), "")
        # `echo` removes the styles if stdout is not a terminal.
        echo("\n".join(graph_lines(status, limit)))
        print_lines(*_failure_lines(status, limit))


def flow_fields(status: FlowStatus) -> dict[str, Any]:
    """Return a flow and its nodes as JSON fields."""
    job = status.job
    return {
        "id": status.id,
        "kind": "flow",
        "state": status.state,
        "total": status.total,
        "completed": status.completed,
        "failed": status.failed,
        "skipped": status.skipped,
        "open": status.open,
        "enqueued_at": _time(None if job is None else job.enqueued_at),
        "ended_at": _time(None if job is None else job.ended_at),
        "error": json_output.error_fields(status.error),
        "nodes": [_node_fields(node) for node in status.nodes],
    }


def _time(moment: Any) -> str | None:
    return None if moment is None else json_output.format_time(round(moment.timestamp() * 1000))


def _node_fields(node: NodeStatus) -> dict[str, Any]:
    return {
        "number": node.number,
        "queue": node.queue,
        "id": node.id,
        "state": node.state,
        "parents": list(node.parents),
        "ignored": list(node.ignored),
        "error": node.error or None,
    }


def _node_row(node: NodeStatus) -> tuple[object, ...]:
    parents = sorted({*node.parents, *node.ignored})
    return node.number, node.queue, node.id, node.state, ",".join(map(str, parents)), node.error


def _failure_lines(status: FlowStatus, limit: int | None) -> Iterator[str]:
    """Yield the failed nodes, each with its error and the command that shows its job."""
    causes = ("failed", "lost") if status.state == "cancelled" else NOT_COMPLETED
    failed = [node for node in status.nodes if node.state in causes]
    if status.error is not None and not failed:
        yield ""
        yield from _fold(f"{status.error.type}: {status.error.message}", limit)
    if failed:
        yield ""
    for node in failed[:MAX_FAILED]:
        yield from _fold(f"{node_text(status, node)} {_reason(node)}", limit)
        yield f"  {_show_command(node)}"
    if len(failed) > MAX_FAILED:
        yield f"and {len(failed) - MAX_FAILED:,} more: dibs flow show {shlex.quote(status.id)} --format lines"
    if status.state == "failed":
        yield f"run them again: dibs flow retry {shlex.quote(status.id)}"


def _reason(node: NodeStatus) -> str:
    error = node.error if len(node.error) <= MAX_ERROR else f"{node.error[: MAX_ERROR - 3]}..."
    reasons = {"cancelled": "was cancelled", "lost": "ended, and its outcome is not kept"}
    return reasons.get(node.state, f"failed: {error}")


def _show_command(node: NodeStatus) -> str:
    if node.queue == FLOWS:
        return f"dibs flow show {shlex.quote(node.id)}"
    return f"dibs show {shlex.quote(node.queue)} {shlex.quote(node.id)}"


def _fold(text: str, limit: int | None) -> Iterable[str]:
    return [text] if limit is None else fold(escape(text), limit)
