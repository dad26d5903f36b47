"""The search for an id in all queues, and for queues by a part of their name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from dibs.model.job import EMPTY
from dibs.web.reading.jobs.job import slot_state
from dibs.web.reading.source import Source, gather

#: Most queues in which one search looks.
MAX_QUEUES: Final = 2_000
#: Seconds after which a search returns the ids that it has found.
MAX_SECONDS: Final = 3.0
#: Most queues by name that a search lists.
MAX_LISTED: Final = 50


@frozen
class SearchPage:
    """The queues that have an id, and the queues whose names contain the text."""

    text: str
    #: Queue and state of each id that was found.
    found: tuple[tuple[str, str], ...]
    names: tuple[str, ...]
    looked: int
    queues: int


async def search(source: Source, params: Mapping[str, str]) -> SearchPage:
    """Look for the id `text` in all queues, with a call for each. Raises Refused for a bad id."""
    storage, text = await source.storage(), params.get("text", "")
    names = sorted(await source.census.queues())
    named = tuple(name for name in names if text.lower() in name.lower())[:MAX_LISTED]
    if not text:
        return SearchPage(text, (), (), 0, len(names))
    found: dict[str, str] = {}
    looked = 0

    async def look(queue: str) -> None:
        nonlocal looked
        [slot] = await storage.get(queue, [text])
        looked += 1
        if slot != EMPTY:
            found[queue] = slot_state(slot)

    try:
        async with asyncio.timeout(MAX_SECONDS):
            await gather(names[:MAX_QUEUES], look)
    except TimeoutError:
        pass
    return SearchPage(text, tuple(sorted(found.items())), named, looked, len(names))
