"""The runs that a worker process has claimed and the storage has not settled yet."""

from __future__ import annotations

from collections.abc import Container, Iterator, MutableSequence, Sequence
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.model.job import Job
from dibs.worker import messages
from dibs.worker.dispatch.fairness import UNITS
from dibs.worker.execution.invocation import Invocation

#: Runs that a process may have in flight, including those that have ended and wait for their settlement.
MAX_IN_FLIGHT: Final = 18 * UNITS


class InFlightRuns:
    """The runs in flight, each with an index of its own into `started`.

    `started` holds one number for each index: 0 until the handler was entered.
    """

    def __init__(self, started: MutableSequence[float]) -> None:
        self._started = started
        self._free = list(range(MAX_IN_FLIGHT))
        self._runs: dict[int, Invocation] = {}
        #: Jobs that the claims in flight may return.
        self.expected = 0

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[Invocation]:
        """Iterate over a copy: runs may be added and removed during the iteration."""
        return iter(list(self._runs.values()))

    @property
    def free(self) -> int:
        """How many more jobs may be claimed."""
        return len(self._free) - self.expected

    def add(self, handler: Handler, jobs: Sequence[Job]) -> list[Invocation]:
        """Return the runs of claimed jobs, each with an index."""
        left = len(self._free) - len(jobs)
        indexes = self._free[left:]
        runs = [Invocation(handler, job, index) for job, index in zip(jobs, indexes, strict=True)]
        del self._free[left:]
        self._runs.update(zip(indexes, runs, strict=True))
        return runs

    def remove(self, invocation: Invocation) -> None:
        """Free the index of a settled run. Removing a run twice does nothing."""
        if self._runs.get(invocation.index) is invocation:
            del self._runs[invocation.index]
            self._started[invocation.index] = 0
            self._free.append(invocation.index)

    def find(self, keys: Container[tuple[str, str, int]]) -> list[Invocation]:
        """Return the runs with these keys that are in flight."""
        return [invocation for invocation in self if invocation.key in keys]

    def clear(self) -> None:
        """Forget all runs. No run may be added afterwards."""
        self._runs.clear()


def claimed_run(invocation: Invocation) -> messages.ClaimedRun:
    """Return the part of a run that the supervisor must know to recover it after a crash."""
    job = invocation.job
    return messages.ClaimedRun(
        invocation.index, job.id, invocation.fence, invocation.claimed_at, invocation.limits.timeout,
        job.stalls, job.timeouts, job.data.overrides,
    )  # fmt: skip
