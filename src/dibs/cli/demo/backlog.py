"""The files of the demo, sorted by the state of their jobs after an earlier run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import msgspec
from attrs import define, field

from dibs.cli.demo.digest import Digest
from dibs.cli.demo.file_tree import FoundFile
from dibs.model.job import Outcome, Slot
from dibs.storage.protocol import Storage

QUEUE = "files"
#: Most ids that one read of the storage asks for.
PAGE_SIZE = 1000

T = TypeVar("T")


@define
class Backlog:
    """The files of the demo, by the state of their jobs."""

    #: Results of the files that have not changed since their job completed, by path.
    done: dict[str, Digest] = field(factory=dict)
    #: Files to enqueue: they are new or changed, or their job failed.
    new: list[FoundFile] = field(factory=list)
    #: Files whose job an interrupted run left in the queue, waiting or active.
    pending: list[FoundFile] = field(factory=list)

    @property
    def to_do(self) -> list[FoundFile]:
        """All files whose job has not ended."""
        return [*self.pending, *self.new]


async def build_backlog(storage: Storage, files: Iterable[FoundFile]) -> Backlog:
    """Sort files by the state of their jobs in the storage."""
    backlog = Backlog()
    async for file, slot in read_slots(storage, files):
        digest = decode_digest(slot.outcome)
        if slot.current is not None:
            backlog.pending.append(file)
        elif digest and (digest.size, digest.mtime_ns) == (file.size, file.mtime_ns):
            backlog.done[file.path] = digest
        else:
            backlog.new.append(file)
    return backlog


async def read_slots(storage: Storage, files: Iterable[FoundFile]) -> AsyncIterator[tuple[FoundFile, Slot]]:
    """Yield each file with everything stored for its job, whose id is the path of the file."""
    for page in split_pages(files, PAGE_SIZE):
        slots = await storage.get(QUEUE, [file.path for file in page])
        for pair in zip(page, slots, strict=True):
            yield pair


def decode_digest(outcome: Outcome | None) -> Digest | None:
    """Return the result of a completed job; None for other outcomes and for results of another kind."""
    if outcome is None or outcome.result is None:
        return None
    try:
        return msgspec.json.decode(outcome.result, type=Digest)
    except msgspec.DecodeError:
        return None


def split_pages(items: Iterable[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, in their order, in lists of at most `size` items."""
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
