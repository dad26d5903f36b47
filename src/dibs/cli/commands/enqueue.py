"""`dibs enqueue`: add a job to a queue."""

from __future__ import annotations

import rich_click as click

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_json, print_lines, print_warning
from dibs.cli.parsing import parse_json, parse_moment, parse_pairs
from dibs.cli.storage_access import connect, warn_of_similar_queue
from dibs.client.options.job_settings import JobSettings, build_request
from dibs.client.options.serde import JSON
from dibs.model.requests import Reject
from dibs.model.results import EnqueueResult

#: Answers to an enqueue with --reject for an id that exists already: the queue is unchanged.
REJECTED = ("duplicate", "completed", "failed")
#: Answers of a queue at its max_waiting, and what became of the job.
NOT_TAKEN = {
    "full": "refused: the queue has as many waiting jobs as its max_waiting allows; enqueue it again later",
    "dropped": "dropped: the queue has as many waiting jobs as its max_waiting allows",
}


@click.command("enqueue")
@options.queue
@click.argument("data", metavar="JSON", help="Payload of the job. Use - to read it from stdin.")
@click.option("--id", metavar="ID", help="Id of the job. Default: a generated id.")
@click.option(
    "--delay",
    type=options.Seconds(min=0),
    metavar="DURATION",
    help="Run the job no earlier than this time from now, as 5m.",
)
@click.option("--at", metavar="TIME", help="Run the job no earlier than this, as 2030-01-31T09:00:00+01:00.")
@click.option("--priority", type=int, metavar="N", default=0, help="-1000 to 1000. Higher runs first.")
@click.option("--key", metavar="KEY", help="Key of the job, for the limits by key. Default: no key.")
@click.option("--attribute", metavar="NAME=JSON", multiple=True, help="Set an attribute. May be repeated.")
@click.option("--reject", is_flag=True, help="Change nothing if the id exists already, with exit code 1.")
@click.option(
    "--supersede", is_flag=True, help="Ask the active run of the id to end; the new job replaces it."
)
@options.url
@options.json
async def command(
    queue: str,
    data: str,
    *,
    id: str | None,
    delay: float | None,
    at: str | None,
    priority: int,
    key: str | None,
    attribute: tuple[str, ...],
    reject: bool,
    supersede: bool,
    url: str | None,
    json: bool,
) -> ExitCode:
    """Add a job to a queue.

    If a job with the same id is waiting, it gets the new payload. If one is active, the new job is blocked
    and runs after it; with --supersede, the active one is asked to end. The payload of a task is
    {"args": [...], "kwargs": {...}}. A task derives the key of a job only from enqueues in Python, so pass
    --key here.

    A queue at its max_waiting takes no new job: the answer is then full or dropped, with exit code 1.

    Example:
        dibs enqueue emails '{"args": ["ada@example.org"]}' --id welcome-42 --url file:./jobs
    """
    if delay is not None and at is not None:
        raise UsageError("--delay and --at cannot be used together: use one of them")
    _check_rule(reject=reject, supersede=supersede)
    settings: JobSettings = {"priority": priority, "supersede": supersede}
    if id is not None:
        settings["id"] = id
    if delay is not None:
        settings["delay"] = delay
    if at is not None:
        settings["run_at"] = parse_moment(at, "--at")
    if key is not None:
        settings["key"] = key
    if attribute:
        settings["attributes"] = parse_pairs(attribute, "--attribute")
    if reject:
        settings["on_conflict"] = Reject()
    request = build_request(JSON.encode(parse_json(data, "the payload")), settings)
    async with connect(url, create=True) as storage:
        await warn_of_similar_queue(storage, queue)
        (answer,) = await storage.enqueue(queue, [request])
    if json:
        print_json(_answer_fields(queue, answer.id or request.job.id, answer))
    else:
        print_lines(f"{answer.status} {queue}/{answer.id or request.job.id}")
    if answer.status in NOT_TAKEN:
        print_warning(f"{queue}/{request.job.id} was {NOT_TAKEN[answer.status]}")
    unchanged = answer.status in REJECTED or answer.status in NOT_TAKEN
    return ExitCode.REFUSED if unchanged else ExitCode.DONE


def _check_rule(*, reject: bool, supersede: bool) -> None:
    if reject and supersede:
        raise UsageError("--reject and --supersede cannot be used together: use one of them")


def _answer_fields(queue: str, id: str, answer: EnqueueResult) -> dict[str, object]:
    return {
        "queue": queue,
        "id": id,
        "status": answer.status,
        "found": answer.found,
        "revisions": [answer.first, answer.revision],
        "repeated": answer.repeated,
    }
