"""`dibs amend`: a job that is queued already is changed where it stands."""

from __future__ import annotations

from typing import Any

import rich_click as click
from msgspec import UNSET, UnsetType

from dibs.cli import options
from dibs.cli.output import Code
from dibs.cli.place import opened, run
from dibs.cli.refusals import WrongWords
from dibs.cli.verdicts import tell_each
from dibs.cli.words import delay_of, json_of, pairs_of, time_of
from dibs.client.options.serde import JSON
from dibs.model.requests import JobPatch


@click.command("amend")
@options.queue
@click.argument("id", metavar="ID", help="The job's id.")
@click.option("--payload", metavar="JSON", help="A new payload.")
@click.option("--attribute", metavar="NAME=JSON", multiple=True, help="An attribute to set; may be repeated.")
@click.option("--priority", type=int, metavar="N", help="-1000 to 1000, higher first.")
@click.option("--delay", type=float, metavar="SECONDS", help="Run that long from now.")
@click.option("--at", metavar="TIME", help="Run at a time, ISO 8601 with a zone.")
@options.url
@options.json
def command(
    queue: str,
    id: str,
    *,
    payload: str | None,
    attribute: tuple[str, ...],
    priority: int | None,
    delay: float | None,
    at: str | None,
    url: str | None,
    json: bool,
) -> Code:
    """Change a job where it stands: attributes at any time, the rest while it waits.

    Taken whole or not at all. Leaves with 1 if the job is active or unknown.

    Example: dibs amend emails welcome-42 --priority 10 --attribute tries=3 --url file:./jobs
    """
    if delay is not None and at is not None:
        raise WrongWords("--delay and --at exclude each other")
    patch = JobPatch(
        payload=UNSET if payload is None else JSON.encode(json_of(payload, "--payload")),
        attributes=_attributes(attribute),
        priority=_given(priority),
        delay=_given(delay_of(delay)),
        run_at=UNSET if at is None else time_of(at, "--at"),
    )
    if patch == JobPatch():
        raise WrongWords("nothing to change: give --payload, --attribute, --priority, --delay or --at")
    return run(_amend(queue, id, patch, url, json=json))


def _given(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value


def _attributes(pairs: tuple[str, ...]) -> Any:
    if not pairs:
        return UNSET
    return {name: JSON.encode(value) for name, value in pairs_of(pairs, "--attribute").items()}


async def _amend(queue: str, id: str, patch: JobPatch, url: str | None, *, json: bool) -> Code:
    async with opened(url) as storage:
        answer = await storage.amend(queue, id, patch)
    return tell_each(queue, [id], [answer], good=("amended",), json=json)
