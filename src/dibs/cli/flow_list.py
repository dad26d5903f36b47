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
from dibs.flow.wakeup import FLOWS
from dibs.model.job import Slot
from dibs.model.results import ListPage, State

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


def print_flows(state: str, page: ListPage, output: Format) -> None:
    """Print one page of flows."""
    flows = [_flow_fields(id, state, slot) for id, slot in page.items]
    print_in_format(
        output,
        {"state": state, "flows": flows, "after": page.after},
        ("flow", "=enqueued at", *(f"#{name}" for name in NUMBERS), "error"),
        [(flow["id"], flow["enqueued_at"], *_numbers(flow), flow["error"] or "") for flow in flows],
        optional=(*(f"#{name}" for name in NUMBERS), "error"),
        empty=f"there is no flow in the state {state}",
    )
    if page.after is not None and output == "table":
        print_lines(f"there are more flows: continue with --after {page.after}")
    elif page.after is not None and output == "lines":
        print_warning(f"there are more flows: continue with --after {page.after}")


def _flow_fields(id: str, state: str, slot: Slot) -> dict[str, Any]:
    part = slot.current or slot.outcome
    error = None if slot.current is not None or slot.outcome is None else slot.outcome.error
    return {
        "id": id,
        "state": state,
        "enqueued_at": json_output.format_time(None if part is None else part.enqueued_at),
        "progress": _progress(slot),
        "error": None if error is None else f"{error.type}: {error.message}",
    }


def _progress(slot: Slot) -> dict[str, int] | None:
    """Return the numbers of nodes that a running flow has reported; None before the first report."""
    run = None if slot.current is None else slot.current.run
    if run is None or run.progress is None:
        return None
    return msgspec.json.decode(run.progress, type=dict[str, int])


def _numbers(flow: Mapping[str, Any]) -> list[object]:
    progress = flow["progress"] or {}
    return [progress.get(name, "") for name in NUMBERS]


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
    return sorted(id for page in pages for id, _ in page.items)
