"""What an earlier run of the demo has done already, and what is left to do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
from msgspec import Struct

from dibs.cli.demo.digest import Digest
from dibs.cli.demo.walk import Found
from dibs.model.job import Outcome, Slot
from dibs.storage.protocol import Storage

QUEUE = "files"
#: How many ids are looked up at once.
PAGE = 1000

T = TypeVar("T")


class Backlog(Struct, kw_only=True):
    """The files of a walk, by what is known of them."""

    #: Unchanged since their job ended, with what it found.
    done: dict[str, Digest]
    #: Never seen, failed or changed: to be enqueued.
    fresh: list[Found]
    #: Enqueued by an earlier run that was interrupted: they wait, or come back by themselves.
    pending: list[Found]

    @property
    def to_do(self) -> list[Found]:
        """Every file whose job has yet to end."""
        return [*self.pending, *self.fresh]


async def backlog_of(storage: Storage, files: Iterable[Found]) -> Backlog:
    """Ask the storage what is known of the files."""
    backlog = Backlog(done={}, fresh=[], pending=[])
    async for file, slot in slots_of(storage, files):
        digest = digest_in(slot.outcome)
        if slot.current is not None:
            backlog.pending.append(file)
        elif digest and (digest.size, digest.mtime_ns) == (file.size, file.mtime_ns):
            backlog.done[file.path] = digest
        else:
            backlog.fresh.append(file)
    return backlog


async def slots_of(storage: Storage, files: Iterable[Found]) -> AsyncIterator[tuple[Found, Slot]]:
    """Yield each file with what is known of its id."""
    for page in pages(files, PAGE):
        slots = await storage.get(QUEUE, [file.path for file in page])
        for pair in zip(page, slots, strict=True):
            yield pair


def digest_in(outcome: Outcome | None) -> Digest | None:
    """Return what a completed job found; None for any other end, or for what is no digest of ours."""
    if outcome is None or outcome.result is None:
        return None
    try:
        return msgspec.json.decode(outcome.result, type=Digest)
    except msgspec.DecodeError:
        return None


def pages(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Cut items into lists of at most `size`."""
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
