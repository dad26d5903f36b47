"""`dibs amend`: change a job that is in a queue."""

from __future__ import annotations

from typing import Any, Final

import rich_click as click
from msgspec import UNSET, UnsetType

from dibs.cli import options
from dibs.cli.errors import UsageError
from dibs.cli.output import ExitCode, print_answers
from dibs.cli.parsing import delay_ms, parse_json, parse_pairs, parse_time
from dibs.cli.storage_access import connect
from dibs.client.options.arguments import duration_ms
from dibs.client.options.serde import JSON
from dibs.model.requests import JobPatch

MEANINGS: Final = {
    "active": "it runs, so only its attributes can change",
    "not_found": "no job with this id waits or runs; an ended job takes only attributes",
}


@click.command("amend")
@options.queue
@click.argument("id", metavar="ID", help="Id of the job.")
@click.option("--payload", metavar="JSON", help="New payload of a waiting job.")
@click.option("--attribute", metavar="NAME=JSON", multiple=True, help="Set an attribute. May be repeated.")
@click.option("--priority", type=int, metavar="N", help="New priority, -1000 to 1000. Higher runs first.")
@click.option(
    "--delay", type=options.Seconds(min=0), metavar="DURATION", help="Run the job this time from now, as 5m."
)
@click.option("--at", metavar="TIME", help="Run the job at this time, as 2030-01-31T09:00:00+01:00.")
@click.option("--lease", type=options.Seconds(), metavar="DURATION", help="New least lease of a receiver.")
@options.url
@options.json
async def command(
    queue: str,
    id: str,
    *,
    payload: str | None,
    attribute: tuple[str, ...],
    priority: int | None,
    delay: float | None,
    at: str | None,
    lease: float | None,
    url: str | None,
    json: bool,
) -> ExitCode:
    """Change a job in a queue: its attributes at any time, everything else only while it waits.

    After the end of a job its attributes can change while its outcome is kept.
    If one of the changes is not possible, none is made. Options that are left out stay as they are.
    Exit code 1 if the job is active or does not exist.

    Example:
        dibs amend emails welcome-42 --priority 10 --url file:./jobs
    """
    if delay is not None and at is not None:
        raise UsageError("--delay and --at cannot be used together: use one of them")
    patch = JobPatch(
        payload=UNSET if payload is None else JSON.encode(parse_json(payload, "--payload")),
        attributes=_encode_attributes(attribute),
        priority=_or_unset(priority),
        delay=_or_unset(delay_ms(delay)),
        run_at=UNSET if at is None else parse_time(at, "--at"),
        lease=UNSET if lease is None else duration_ms("lease", lease),
    )
    if patch == JobPatch():
        raise UsageError("there is no change: add an option, such as --priority or --delay")
    async with connect(url) as storage:
        answer = await storage.amend(queue, id, patch)
    return print_answers(queue, [id], [answer], meanings=MEANINGS, good=("amended",), json=json)


def _or_unset(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value


def _encode_attributes(pairs: tuple[str, ...]) -> Any:
    if not pairs:
        return UNSET
    return {name: JSON.encode(value) for name, value in parse_pairs(pairs, "--attribute").items()}
