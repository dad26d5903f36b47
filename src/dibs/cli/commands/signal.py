"""`dibs signal`: send a value to a job that waits for it."""

from __future__ import annotations

from typing import Final

import rich_click as click

from dibs.cli import options
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.parsing import parse_json
from dibs.cli.storage_access import connect
from dibs.client.calls.signals import SIGNAL_STATUSES, signal_request
from dibs.client.options.serde import JSON

MEANINGS: Final = {
    "absent": "no job with this id waits or runs",
    "full": "the attributes of the job, with all its signals, would have more than 64 KiB",
}


@click.command("signal")
@options.queue
@click.argument("id", metavar="ID", help="Id of the job.")
@click.argument("name", metavar="NAME", help="Name of the signal, as in `wait_for(NAME)`.")
@click.argument("value", metavar="[JSON]", default="null", help="Value of the signal; null by default.")
@click.option("--request-key", metavar="KEY", help="A repeat with this key sends nothing.")
@options.url
@options.json
async def command(
    queue: str, id: str, name: str, value: str, *, request_key: str | None, url: str | None, json: bool
) -> ExitCode:
    """Send a value to a job. A job whose handler waits for it is due at once; any other job keeps it.

    Exit code 1 if no job with this id waits or runs, or if it has no room for the value. The value is JSON,
    so the queue must have the default serde.

    Example:
        dibs signal orders order-7 approved '{"by": "ada"}' --url file:./jobs
    """
    request = signal_request(JSON, id, name, parse_json(value, "JSON"), request_key)
    async with connect(url) as storage:
        (answer,) = await storage.enqueue(queue, [request])
    answers = [SIGNAL_STATUSES[answer.status]]
    return print_answers(queue, [id], answers, meanings=MEANINGS, good=("delivered",), json=json)
