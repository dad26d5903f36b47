"""`dibs enqueue`: a job is put into a queue."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.output import Code, say, write_json
from dibs.cli.place import opened, run
from dibs.cli.words import json_of, pairs_of
from dibs.client.options.job_settings import JobSettings, build_request
from dibs.client.options.serde import JSON
from dibs.model.requests import EnqueueRequest, Reject
from dibs.model.results import EnqueueResult

#: What a request came to when nothing was put into the queue.
LEFT_ALONE = ("duplicate", "completed", "failed")


@click.command("enqueue")
@options.queue
@click.argument("data", metavar="JSON", help="The payload; - reads it from stdin.")
@click.option("--id", metavar="ID", help="Generated when left out.")
@click.option("--delay", type=float, metavar="SECONDS", help="Not before that long from now.")
@click.option("--priority", type=int, metavar="N", default=0, help="-1000 to 1000, higher first.")
@click.option(
    "--attribute", metavar="NAME=JSON", multiple=True, help="To find and to route by; may be repeated."
)
@click.option("--reject", is_flag=True, help="Leave a known id as it is, and leave with 1.")
@options.url
@options.json
def command(
    queue: str,
    data: str,
    *,
    id: str | None,
    delay: float | None,
    priority: int,
    attribute: tuple[str, ...],
    reject: bool,
    url: str | None,
    json: bool,
) -> Code:
    """Put a job into a queue. A waiting job of the same id is updated; beside an active one it is blocked.

    Example: dibs enqueue emails '{"to": "ada@example.org"}' --id welcome-42 --url file:./jobs
    """
    settings: JobSettings = {"priority": priority}
    if id is not None:
        settings["id"] = id
    if delay is not None:
        settings["delay"] = delay
    if attribute:
        settings["attributes"] = pairs_of(attribute, "--attribute")
    if reject:
        settings["on_conflict"] = Reject()
    request = build_request(JSON.encode(json_of(data, "the payload")), settings)
    return run(_enqueue(queue, request, url, json=json))


async def _enqueue(queue: str, request: EnqueueRequest, url: str | None, *, json: bool) -> Code:
    async with opened(url, new=True) as storage:
        (answer,) = await storage.enqueue(queue, [request])
    if json:
        write_json(_shape(queue, request.job.id, answer))
    else:
        say(f"{answer.status} {queue}/{request.job.id}")
    return Code.REFUSED if answer.status in LEFT_ALONE else Code.DONE


def _shape(queue: str, id: str, answer: EnqueueResult) -> dict[str, object]:
    return {
        "queue": queue,
        "id": id,
        "status": answer.status,
        "found": answer.found,
        "revisions": [answer.first, answer.revision],
        "repeated": answer.repeated,
    }
