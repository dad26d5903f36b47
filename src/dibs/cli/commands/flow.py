"""`dibs flow`: show, list, cancel and retry flows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import rich_click as click

from dibs.app import Dibs
from dibs.cli import options
from dibs.cli.commands.cancel import MEANINGS as CANCEL_MEANINGS
from dibs.cli.commands.retry import MEANINGS as RETRY_MEANINGS
from dibs.cli.errors import UsageError
from dibs.cli.flow_graph import is_ended, mermaid_lines
from dibs.cli.flow_output import RUNNING, STATES, complete_flow, print_batch, print_flow, print_flows
from dibs.cli.options import Format
from dibs.cli.output import ExitCode, print_answers, print_lines, print_warning
from dibs.cli.storage_access import connect, find_storage, read_page
from dibs.client.connection.storage_handle import resolve_url
from dibs.errors import Refused
from dibs.flow.batch.plan import BatchStatus, find_batch
from dibs.flow.stored_flow import FlowStatus
from dibs.model.wakeup import FLOWS

#: Seconds between two reads of --watch.
WATCH_INTERVAL: Final = 1.0
CANCELLING: Final = {
    **CANCEL_MEANINGS,
    "requested": "a worker cancels its open nodes",
    "not_found": "there is no flow with this id, or its outcome has expired",
}
RETRYING: Final = {
    **RETRY_MEANINGS,
    "live": "it waits or runs already",
    "completed": "it has completed; only failed flows can be retried",
    "cancelled": "it was cancelled; only failed flows can be retried",
    "not_found": "there is no flow with this id, or its outcome has expired",
}

flow_id = click.argument("id", metavar="ID", help="Id of the flow.", shell_complete=complete_flow)
flow_ids = click.argument(
    "ids",
    metavar="ID...",
    nargs=-1,
    required=True,
    help="Ids of one or more flows.",
    shell_complete=complete_flow,
)


@click.group("flow")
def command() -> None:
    """Show, list, cancel and retry flows: jobs that wait for each other.

    They need --url only, not the application. show and list print JSON with --json, as cancel and retry do.

    Example:
        dibs flow show import-42 --url file:./jobs
    """


@command.command("show")
@flow_id
@click.option("--mermaid", is_flag=True, help="Print a flowchart for Mermaid, as Markdown files show it.")
@click.option("--watch", is_flag=True, help="Print the flow again after each change, until it ends.")
@options.url
@options.output
async def show(id: str, *, mermaid: bool, watch: bool, url: str | None, output: Format) -> ExitCode:
    """Draw a flow as a graph with the state of each node, and list the nodes that failed.

    Nodes of a large flow that have the same queue and a similar place in the graph share a row. For a batch,
    print the numbers of its members. Exit code 1 if there is no flow with this id.

    Examples:
        dibs flow show import-42 --url file:./jobs
        dibs flow show import-42 --watch --url file:./jobs
    """
    async with _connect(url) as app:
        shown: FlowStatus | BatchStatus | None = None
        while True:
            status = await _read_status(app, id)
            if status is None:
                print_warning(f"flow {id!r} does not exist; `dibs flow list` lists flows")
                return ExitCode.REFUSED
            if status != shown:
                _print_status(status, output, mermaid=mermaid, again=shown is not None)
            if not watch or is_ended(status.state):
                return ExitCode.DONE
            shown = status
            await asyncio.sleep(WATCH_INTERVAL)


async def _read_status(app: Dibs, id: str) -> FlowStatus | BatchStatus | None:
    if (batch := await _find_batch(app, id)) is not None:
        return batch
    try:
        return await app.get_flow(id).status()
    except ValueError as error:
        raise Refused(f"the job {FLOWS}/{id} has no plan of a flow: {error}", field="id") from error


async def _find_batch(app: Dibs, id: str) -> BatchStatus | None:
    """Return the status of a batch; None for a flow and for an unknown id."""
    (slot,) = await app.storage.get(FLOWS, [app.get_flow(id).id])
    return find_batch(id, slot)


def _print_status(status: FlowStatus | BatchStatus, output: Format, *, mermaid: bool, again: bool) -> None:
    if again and output == "table":
        click.clear()
    if isinstance(status, BatchStatus):
        if mermaid:
            raise UsageError(f"{status.id} is a batch, whose members have no order: leave out --mermaid")
        print_batch(status, output)
    elif mermaid:
        print_lines(*mermaid_lines(status))
    else:
        print_flow(status, output)


@command.command("list")
@click.option(
    "--state",
    type=click.Choice(STATES),
    metavar="STATE",
    default=RUNNING,
    help=f"One of {', '.join(STATES)}.",
)
@click.option("--nested", is_flag=True, help="Also list flows that are part of another flow or a batch.")
@click.option(
    "--limit", type=options.Number(1, 1000), metavar="N", default=100, help="Maximum number of flows."
)
@click.option(
    "--after", metavar="CURSOR", help="Continue a listing after this cursor, which the last page printed."
)
@options.url
@options.output
async def list_flows(
    state: str, *, nested: bool, limit: int, after: str | None, url: str | None, output: Format
) -> None:
    """List flows and batches in one state with the numbers of their jobs, in no particular order.

    Example:
        dibs flow list --state failed --url file:./jobs
    """
    async with connect(url) as storage:
        page = await read_page(storage, FLOWS, STATES[state], after=after, limit=limit)
        counts = {} if page.items else await storage.counts([FLOWS])
    waiting = counts[FLOWS].waiting if FLOWS in counts else 0
    print_flows(state, page, output, nested=nested, waiting=waiting)


@command.command("cancel")
@flow_ids
@options.url
@options.json
async def cancel(ids: tuple[str, ...], *, url: str | None, json: bool) -> ExitCode:
    """Cancel flows: their open nodes are cancelled, and no other node starts.

    A flow that has started is cancelled by its next worker with flows=True. Jobs with an id that the caller
    has chosen run on, because other flows may share them. Exit code 1 if one of the flows has ended or does
    not exist.

    Example:
        dibs flow cancel import-42 --url file:./jobs
    """
    async with _connect(url) as app:
        answers = [await _cancel_flow(app, flow.id) for flow in [app.get_flow(id) for id in ids]]
    return print_answers(FLOWS, ids, answers, meanings=CANCELLING, good=("cancelled", "requested"), json=json)


@command.command("retry")
@flow_ids
@options.url
@options.json
async def retry(ids: tuple[str, ...], *, url: str | None, json: bool) -> ExitCode:
    """Run failed flows again: completed nodes stay, and the others run again.

    Exit code 1 if one of the flows has not failed or does not exist.

    Example:
        dibs flow retry import-42 --url file:./jobs
    """
    async with _connect(url) as app:
        answers = [await flow.retry_failed() for flow in [app.get_flow(id) for id in ids]]
    return print_answers(FLOWS, ids, answers, meanings=RETRYING, good=("queued",), json=json)


async def _cancel_flow(app: Dibs, id: str) -> str:
    if await _find_batch(app, id) is not None:
        return await app.get_batch(id).cancel()
    return await app.get_flow(id).cancel()


@asynccontextmanager
async def _connect(url: str | None) -> AsyncIterator[Dibs]:
    """Open an app without tasks on the storage of --url, $DIBS_URL or pyproject.toml."""
    app = Dibs(resolve_url(url), flows=True, call_timeout=None)
    with app.override_storage(find_storage(url)):
        async with app:
            yield app
