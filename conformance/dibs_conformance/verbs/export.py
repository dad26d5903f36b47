"""The verb `export`, and the operation of test clients that reads an export in parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dibs.model.job import Slot
from dibs.storage.protocol import Storage
from dibs_conformance.verbs.list import MAX_PAGES, EndlessPages, apply_found, split_reading
from dibs_conformance.verbs.verb import Verb, read_races

#: The number of parts into which the operation `split` divides an export.
PARTS = 2


async def read_export(
    storage: Storage, queue: str, *, limit: int = 100, after: str | None = None, until: str | None = None
) -> list[tuple[str, Slot]]:
    """Return all ids of an export, or of the part of it between two cursors."""
    found: list[tuple[str, Slot]] = []
    for _ in range(MAX_PAGES):
        page = await storage.export(queue, after=after, until=until, limit=limit)
        found += [(record.id, record.slot) for record in page.records]
        after = page.after
        if after is None:
            return found
    raise EndlessPages(f"export of {queue!r} does not end after {MAX_PAGES} pages")


async def read_split(storage: Storage, queue: str, *, limit: int = 100) -> list[tuple[str, Slot]]:
    """Return all ids of an export that is read in parts, the last part first."""
    cursors: Sequence[str | None] = [None, *await storage.split(queue, PARTS), None]
    found: list[tuple[str, Slot]] = []
    for after, until in reversed([*pairwise(cursors)]):
        found += await read_export(storage, queue, limit=limit, after=after, until=until)
    return found


VERB = Verb(
    name="export",
    section="3, Queues as a whole",
    weight=1,
    arguments=lambda action, _, __: {"limit": action.limit},
    split=split_reading,
    apply=apply_found,
    reads=True,
    takes_now=False,
    call=read_export,
    races=read_races("export beside enqueue (3, Queues as a whole): / export one"),
    valid={"after": None, "until": None},
)
SPLIT = Verb(
    name="split",
    section="3, Queues as a whole",
    weight=1,
    arguments=lambda action, _, __: {"limit": action.limit},
    split=split_reading,
    apply=apply_found,
    reads=True,
    takes_now=False,
    call=read_split,
    races=read_races("split beside forget (3, Queues as a whole): / split one"),
)
