"""The output of `dibs flow`: one flow, one batch, a list of flows, and the completion of their ids."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import rich_click as click
from click.shell_completion import CompletionItem
from msgspec import structs

from dibs.cli import json_output
from dibs.cli.completion import TIME_LIMIT
from dibs.cli.flow_graph import FLOW_STATES, NOT_COMPLETED, flow_text, graph_lines, node_text
from dibs.cli.options import Format
from dibs.cli.output import echo, escape, print_json, print_lines, print_warning
from dibs.cli.tables import fold, print_in_format, print_tab_separated
from dibs.flow.batch.plan import BatchStatus, find_batch, flow_attributes
from dibs.flow.stored_flow import FlowStatus, NodeStatus
from dibs.model.job import Slot
from dibs.model.results import ListPage, State
from dibs.model.wakeup import FLOWS, flow_of

#: The most failed nodes that are listed below the drawing.
MAX_FAILED: Final = 10
#: The most characters of an error that are printed below the drawing.
MAX_ERROR: Final = 300


def print_flow(status: FlowStatus, output: Format) -> None:
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


RUNNING: Final = "running"
#: The states of `--state`, and the states of the flow jobs.
STATES: Final[Mapping[str, State]] = {
    RUNNING: "handed_off",
    "waiting": "waiting",
    "completed": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
NUMBERS: Final = ("total", "completed", "failed", "skipped", "open")


def print_flows(state: str, page: ListPage, output: Format, *, nested: bool, waiting: int = 0) -> None:
    """Print one page of flows; with `nested` also those that are part of another flow or a batch.

    `waiting`: the number of flows that wait to start, which the text about an empty page mentions.
    """
    items = [(id, slot) for id, slot in page.items if nested or not _is_nested(slot)]
    flows = [_flow_fields(id, state, slot) for id, slot in items]
    print_in_format(
        output,
        {"state": state, "flows": flows, "after": page.after},
        ("flow", "=kind", "part of", "=enqueued at", *(f"#{name}" for name in NUMBERS), "error"),
        map(_flow_row, flows),
        optional=("part of", *(f"#{name}" for name in NUMBERS), "error"),
        empty=_empty_text(state, waiting),
    )
    if page.after is not None and output == "table":
        print_lines(f"there are more flows: continue with --after {page.after}")
    elif page.after is not None and output == "lines":
        print_warning(f"there are more flows: continue with --after {page.after}")


def _empty_text(state: str, waiting: int) -> str:
    """Return the text about a page without flows."""
    text = f"there is no flow in the state {state}"
    if not waiting or state != RUNNING:
        return text
    flows = "1 flow waits" if waiting == 1 else f"{waiting} flows wait"
    return f"{text}; {flows} for a worker: dibs flow list --state waiting"


def _is_nested(slot: Slot) -> bool:
    return flow_of(flow_attributes(slot)) is not None


def _flow_fields(id: str, state: str, slot: Slot) -> dict[str, Any]:
    part = slot.current or slot.outcome
    error = None if slot.current is not None or slot.outcome is None else slot.outcome.error
    batch = find_batch(id, slot)
    return {
        "id": id,
        "kind": "flow" if batch is None else "batch",
        "part_of": flow_of(flow_attributes(slot)),
        "state": state,
        "enqueued_at": json_output.format_time(None if part is None else part.enqueued_at),
        "progress": _flow_progress(slot) if batch is None else _batch_progress(batch),
        "error": None if error is None else f"{error.type}: {error.message}",
    }


def _flow_progress(slot: Slot) -> dict[str, int] | None:
    """Return the numbers of nodes that a running flow has reported; None before the first report."""
    run = None if slot.current is None else slot.current.run
    if run is None or run.progress is None:
        return None
    return msgspec.json.decode(run.progress, type=dict[str, int])


def _batch_progress(batch: BatchStatus) -> dict[str, int] | None:
    """Return the numbers of members under the names of those of nodes."""
    numbers = batch.summary
    if numbers is None:
        return None
    failed = numbers.failed + numbers.cancelled + numbers.lost + numbers.missing
    counts = (numbers.members, numbers.completed, failed, 0, numbers.open)
    return dict(zip(NUMBERS, counts, strict=True))


def _flow_row(flow: Mapping[str, Any]) -> tuple[object, ...]:
    numbers = flow["progress"] or {}
    counts = (numbers.get(name, "") for name in NUMBERS)
    return flow["id"], flow["kind"], flow["part_of"] or "", flow["enqueued_at"], *counts, flow["error"] or ""


def complete_flow(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return ids of running and failed flows that begin with the incomplete word; none after any error."""
    try:
        ids = asyncio.run(_read_ids(ctx.params.get("url")))
    except Exception:  # noqa: BLE001 - an error message would be printed into the command line of the user
        return []
    taken = ctx.params.get("ids") or ()
    return [CompletionItem(id) for id in ids if id.startswith(incomplete) and id not in taken]


async def _read_ids(url: str | None) -> list[str]:
    from dibs.cli.storage_access import connect  # noqa: PLC0415 - only a completion needs the storage here

    async with asyncio.timeout(TIME_LIMIT), connect(url) as storage:
        pages = [await storage.list(FLOWS, state, limit=1000) for state in ("handed_off", "failed")]
    return sorted(id for page in pages for id, slot in page.items if not _is_nested(slot))
