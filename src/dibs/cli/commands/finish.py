"""`dibs finish`: end a job that was handed off."""

from __future__ import annotations

from typing import Final

import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.parsing import parse_json
from dibs.cli.storage_access import connect
from dibs.client.options.serde import JSON
from dibs.client.stored_queue import wake_flows_of
from dibs.model.error_text import to_storable_error
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, End, Fail

MEANINGS: Final = {
    "lost": "its run has another revision, or has ended in another way",
    "refused": "it waits, or a worker holds it; only a job that was handed off can be finished",
    "not_found": "there is no job with this id, or its outcome has expired",
}


@click.command("finish")
@options.queue
@click.argument("id", metavar="ID", help="Id of the job.")
@click.option(
    "--revision",
    type=options.Number(min=0),
    metavar="N",
    required=True,
    help="The number that `hand_off()` returned.",
)
@click.option(
    "--result", metavar="JSON", help="Complete the job with this result. Use - to read it from stdin."
)
@click.option("--error", metavar="TEXT", help="Fail the job with this message.")
@click.option("--cancelled", is_flag=True, help="End the job as cancelled.")
@options.url
@options.json
async def command(
    queue: str,
    id: str,
    *,
    revision: int,
    result: str | None,
    error: str | None,
    cancelled: bool,
    url: str | None,
    json: bool,
) -> ExitCode:
    """End a job that was handed off with `claim.hand_off()`, as `queue.finish()` in Python.

    `dibs list QUEUE --state handed_off` lists these jobs, and `dibs show` prints their revisions. The command
    may be repeated with the same arguments. A failure gets a job of the failure handler, if the queue has the
    setting fail_handler. Exit code 1 if the job was not handed off, has ended in another
    way, or does not exist.

    Examples:
        dibs finish videos cat.mp4 --revision 1795195879388000 --result 250
        dibs finish videos dog.mp4 --revision 1795195879632000 --error "no space"
    """
    if (result is not None) + (error is not None) + cancelled != 1:
        raise UsageError("finish needs --result, --error or --cancelled; pass one of them")
    end: End = Cancelled()
    if result is not None:
        end = Complete(result=JSON.encode(parse_json(result, "--result")))
    elif error is not None:
        end = Fail(error=to_storable_error(Error(type="Failed", message=error)))
    async with connect(url) as storage:
        answer = await storage.finish(queue, id, end, revision)
        if answer == "done":
            await wake_flows_of(storage, queue, [id])
    return print_answers(queue, [id], [answer], meanings=MEANINGS, good=("done",), json=json)
