"""The runs that a worker process has in hand, each at a place of its own."""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableSequence, Sequence
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.model.job import Job
from dibs.worker.dispatch.capacity import UNITS
from dibs.worker.execution.invocation import Invocation

#: How many runs a process may have in hand, those that ended and are not settled yet among them.
PLACES: Final = 18 * UNITS


class Hand:
    """Finds a place for each run; `started` holds one number a place, 0 where no handler was entered."""

    def __init__(self, started: MutableSequence[float]) -> None:
        self._started = started
        self._free = list(range(PLACES))
        self._runs: dict[int, Invocation] = {}
        #: How many jobs the claims on their way may bring.
        self.expected = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[Invocation]:
        """Yield those that are held now, whatever becomes of them meanwhile."""
        return iter(list(self._runs.values()))

    @property
    def room(self) -> int:
        """How many more may be asked for."""
        return len(self._free) - self.expected

    def take(self, handler: Handler, jobs: Sequence[Job]) -> list[Invocation]:
        """Take jobs that were claimed in hand, and return their runs."""
        left = len(self._free) - len(jobs)
        places = self._free[left:]
        runs = [Invocation(handler, job, place) for job, place in zip(jobs, places, strict=True)]
        del self._free[left:]
        self._runs.update(zip(places, runs, strict=True))
        return runs

    def let_go(self, run: Invocation) -> None:
        """Let go of a run that is settled; one that was let go of before is left alone."""
        if self._runs.get(run.place) is run:
            del self._runs[run.place]
            self._started[run.place] = 0
            self._free.append(run.place)

    def with_keys(self, keys: Container[tuple[str, str, int]]) -> list[Invocation]:
        """Return those with these keys, as far as they are held."""
        return [run for run in self if run.key in keys]

    def clear(self) -> None:
        """Forget everything; nothing is taken in hand after that."""
        self._runs.clear()
