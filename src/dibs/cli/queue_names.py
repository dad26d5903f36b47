"""Completion of the names of queues in a shell."""

from __future__ import annotations

import asyncio
from typing import Final

import rich_click as click
from click.shell_completion import CompletionItem

#: Longest time in s that a completion may take.
TIME_LIMIT: Final = 1.0


def complete_queue(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the queues of the storage whose names begin with the incomplete word; none after any error."""
    try:
        names = asyncio.run(_read_names(ctx.params.get("url")))
    except Exception:  # noqa: BLE001 - an error message would be printed into the command line of the user
        return []
    taken = ctx.params.get("queues") or ()
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name not in taken]


async def _read_names(url: str | None) -> list[str]:
    from dibs.cli.storage_access import connect  # noqa: PLC0415 - only a completion needs the storage here
    from dibs.model.worker_record import without_reserved  # noqa: PLC0415 - as above

    async with asyncio.timeout(TIME_LIMIT), connect(url) as storage:
        return sorted(info.name for info in without_reserved(await storage.queues()))
