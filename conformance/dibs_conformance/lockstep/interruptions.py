"""Restarts and compactions of a storage between the calls of an example.

A restart closes one handle and opens a new one. A compaction is the rare work of a storage, for example a
checkpoint (dibs.storage.compaction). Neither may change a result.
"""

from __future__ import annotations

from random import Random
from typing import Final, Literal

from attrs import define, field

from dibs.storage.compaction import Compaction
from dibs_conformance.loop_runner import LoopRunner
from dibs_conformance.target import OpenedStorage

Kind = Literal["restart", "compact"]
#: The mean number of accesses to a storage for each interruption: in random examples, and in the walkthrough.
RARELY: Final = 25
OFTEN: Final = 8


@define
class Interruptions:
    """A plan of interruptions: before each access to a storage one may occur, on average one in `every`.

    The same sequence of accesses has the same interruptions, so that a replay repeats a failure.
    """

    kinds: tuple[Kind, ...] = ()
    every: int = RARELY
    _random: Random = field(factory=lambda: Random(0))

    def next(self) -> Kind | None:
        """Return the interruption before the next access, or None."""
        if not self.kinds or self._random.randrange(self.every):
            return None
        return self._random.choice(self.kinds)


def interruption_kinds(*, durable: bool, compacts: bool) -> tuple[Kind, ...]:
    """Return the interruptions that a storage must survive, by its claims."""
    return (*(("restart",) if durable else ()), *(("compact",) if compacts else ()))


def compact_handle(opened: OpenedStorage, runner: LoopRunner, handle: int) -> None:
    """Call the method `compact` of a handle, if its storage offers it."""
    storage = opened.handles[handle]
    if isinstance(storage, Compaction):
        runner.run(storage.compact())
