"""The output of `dibs flow list`, and the completion of the ids of flows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import rich_click as click
from click.shell_completion import CompletionItem

from dibs.cli import json_output
from dibs.cli.options import Format
from dibs.cli.output import print_lines, print_warning
from dibs.cli.queue_names import TIME_LIMIT
from dibs.cli.tables import print_in_format
from dibs.flow.batch.plan import BatchStatus, find_batch, flow_attributes
from dibs.model.job import Slot
from dibs.model.results import ListPage, State
from dibs.model.wakeup import FLOWS, flow_of

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
