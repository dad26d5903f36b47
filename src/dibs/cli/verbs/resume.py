"""`dibs resume`: a paused queue goes on."""

from __future__ import annotations

from dibs.cli.place import Json, Queue, Url, run
from dibs.cli.verbs.pause import set_paused


def command(queue: Queue, *, url: Url = None, json: Json = False) -> None:
    """Let a paused queue go on.

    Example: dibs resume emails --url file:./jobs
    """
    run(set_paused(queue, url, paused=False, json=json))
