"""`dibs amend`: a job that is queued already is changed where it stands."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from msgspec import UNSET, UnsetType

from dibs.cli.output import Code
from dibs.cli.place import Json, Queue, Url, opened, run
from dibs.cli.refusals import WrongWords
from dibs.cli.verdicts import tell_each
from dibs.cli.words import delay_of, json_of, pairs_of, time_of
from dibs.client.serde import JSON
from dibs.model.requests import Patch


def command(
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    *,
    payload: Annotated[str | None, typer.Option(metavar="JSON", help="A new payload.")] = None,
    attribute: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="An attribute to set; may be repeated.")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="-1000 to 1000, higher first.")] = None,
    delay: Annotated[float | None, typer.Option(metavar="SECONDS", help="Run that long from now.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Run at a time, ISO 8601 with a zone.")
    ] = None,
    url: Url = None,
    json: Json = False,
) -> Code:
    """Change a job where it stands: attributes at any time, the rest while it waits.

    Taken whole or not at all. Leaves with 1 if the job is active or unknown.

    Example: dibs amend emails welcome-42 --priority 10 --attribute tries=3 --url file:./jobs
    """
    if delay is not None and at is not None:
        raise WrongWords("--delay and --at exclude each other")
    patch = Patch(
        payload=UNSET if payload is None else JSON.encode(json_of(payload, "--payload")),
        attributes=_attributes(attribute),
        priority=_given(priority),
        delay=_given(delay_of(delay)),
        run_at=UNSET if at is None else time_of(at, "--at"),
    )
    if patch == Patch():
        raise WrongWords("nothing to change: give --payload, --attribute, --priority, --delay or --at")
    return run(_amend(queue, id, patch, url, json=json))


def _given(value: int | None) -> int | UnsetType:
    return UNSET if value is None else value


def _attributes(pairs: list[str] | None) -> Any:
    if not pairs:
        return UNSET
    return {name: JSON.encode(value) for name, value in pairs_of(pairs, "--attribute").items()}


async def _amend(queue: str, id: str, patch: Patch, url: str | None, *, json: bool) -> Code:
    async with opened(url) as storage:
        answer = await storage.amend(queue, id, patch)
    return tell_each(queue, [id], [answer], good=("amended",), json=json)
