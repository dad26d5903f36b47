"""`dibs cancel`: cancel waiting jobs, and ask active ones to stop."""

from __future__ import annotations

from typing import Final

import rich_click as click

from dibs.cli import options
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.storage_access import connect
from dibs.client.stored_queue import wake_flows_of

MEANINGS: Final = {
    "requested": "its run is asked to stop",
    "active": "it runs; --running asks it to stop",
    "completed": "it has completed already",
    "failed": "it has failed already",
    "not_found": "there is no job with this id, or its outcome has expired",
}


@click.command("cancel")
@options.queue
@options.ids
@click.option("--running", is_flag=True, help="Also ask active jobs to stop.")
@options.url
@options.json
async def command(
    queue: str, ids: tuple[str, ...], *, running: bool, url: str | None, json: bool
) -> ExitCode:
    """Cancel jobs. A waiting job ends at once, and so does a job that is blocked by an active one.

    An active job is only asked to stop, and only with --running. Exit code 1 if one of the jobs is active
    (without --running), has ended or does not exist.

    Example:
        dibs cancel emails welcome-42 --running --url file:./jobs
    """
    async with connect(url) as storage:
        answers = await storage.cancel(queue, ids, running=running)
        cancelled = [id for id, answer in zip(ids, answers, strict=True) if answer == "cancelled"]
        if cancelled:
            await wake_flows_of(storage, queue, cancelled)
    return print_answers(queue, ids, answers, meanings=MEANINGS, good=("cancelled", "requested"), json=json)
