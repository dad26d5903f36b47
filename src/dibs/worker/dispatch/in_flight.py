"""The runs of a worker process from their claim until the storage has settled them."""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Container, Iterator, MutableSequence, Sequence
from typing import Final

from dibs.client.calls.handler import Handler
from dibs.model.job import Job
from dibs.model.requests import Complete, Fail
from dibs.worker import messages
from dibs.worker.dispatch.fairness import PROCESS_UNITS
from dibs.worker.dispatch.flow_wakeups import FlowWakeups
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.round_trip import Reply
from dibs.worker.execution.executor import runs_on_thread
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import counter_name, fallback_action
from dibs.worker.execution.outcome_log import log_action

logger = logging.getLogger("dibs.worker")

#: Largest number of runs in flight in one process, including ended runs that wait for their settlement.
MAX_IN_FLIGHT: Final = 40 * PROCESS_UNITS


class InFlightRuns:
    """The runs of this process that are claimed and not yet settled.

    Each run has a unique index into the array `started`, which holds the start time of its handler, or 0.
    """

    def __init__(
        self,
        started: MutableSequence[float],
        wakeups: FlowWakeups | None = None,
        max_claims: int | None = None,
    ) -> None:
        self._started = started
        self._wakeups = wakeups
        self._free_indexes = list(range(MAX_IN_FLIGHT))
        self._runs: dict[int, Invocation] = {}
        #: Largest number of jobs that the claims in flight can return.
        self.expected_jobs = 0
        #: The number of jobs that were claimed so far.
        self.claimed = 0
        self._max_claims = math.inf if max_claims is None else max_claims

    def __bool__(self) -> bool:
        return bool(self._runs)

    def __iter__(self) -> Iterator[Invocation]:
        """Iterate over a copy: runs may be added and removed during the iteration."""
        return iter(list(self._runs.values()))

    @property
    def claims_left(self) -> float:
        """The number of jobs that the process may still claim."""
        return self._max_claims - self.claimed

    @property
    def claimable(self) -> int:
        """The number of jobs that may be claimed now: the free indexes, less the jobs of claims in flight."""
        return int(min(len(self._free_indexes), self.claims_left)) - self.expected_jobs

    def add(self, handler: Handler, jobs: Sequence[Job]) -> list[Invocation]:
        """Add claimed jobs, and return their runs in the same order."""
        left = len(self._free_indexes) - len(jobs)
        indexes = self._free_indexes[left:]
        now = time.monotonic()
        runs = [Invocation(handler, job, index, now) for job, index in zip(jobs, indexes, strict=True)]
        del self._free_indexes[left:]
        self.claimed += len(jobs)
        self._runs.update(zip(indexes, runs, strict=True))
        return runs

    def remove(self, invocation: Invocation) -> None:
        """Remove a settled run and free its index. Ignore a run that was removed before."""
        if self._runs.get(invocation.index) is invocation:
            del self._runs[invocation.index]
            self._started[invocation.index] = 0
            self._free_indexes.append(invocation.index)

    def find_runs(self, keys: Container[tuple[str, str, int]]) -> list[Invocation]:
        """Return the runs with these keys that are in flight."""
        return [invocation for invocation in self if invocation.key in keys]

    def apply_settlements(self, queue: QueueState, reply: Reply) -> dict[str, list[int]]:
        """Remove the settled runs of a reply, and return their indexes by the counter they add to.

        A run whose settlement was refused stays in flight if there is a fallback action for it.
        """
        counters: defaultdict[str, list[int]] = defaultdict(list)
        for invocation, result in zip(reply.settled, reply.results, strict=True):
            if result.status == "done" and isinstance(invocation.action, Complete):  # most runs
                counters["completed"].append(invocation.index)
                self.remove(invocation)
                continue
            if result.status == "refused":
                fallback = fallback_action(invocation, result.reason)
                if fallback is not None:
                    if not isinstance(invocation.action, Fail):
                        log_action(invocation, fallback)
                    queue.add_settlement(invocation, fallback)
                    continue
                fields = invocation.log_fields
                logger.error(
                    "%s/%s: the storage refused to settle the run: %s",
                    *invocation.key[:2],
                    result.reason,
                    extra=fields,
                )
            counters[counter_name(invocation.action, result)].append(invocation.index)
            self.remove(invocation)
        if self._wakeups is not None:
            self._wakeups.after_settlements(reply.settled, counters)
        return counters

    def all_unstoppable(self, *, stopping: bool) -> bool:
        """Return whether all runs in flight are handlers that the worker cannot interrupt.

        These are the overrun handlers and, while `stopping`, all `def` handlers.
        """
        return all(
            not run.finished and (run.overran or (stopping and runs_on_thread(run.handler))) for run in self
        )

    def clear(self) -> None:
        """Forget all runs without freeing their indexes, so no run may be added afterwards."""
        self._runs.clear()


def to_claimed_run(invocation: Invocation) -> messages.ClaimedRun:
    """Return the part of RunsClaimed by which the supervisor can settle this run if the process dies."""
    job = invocation.job
    return messages.ClaimedRun(
        invocation.index, job.id, invocation.fence, invocation.claimed_at, invocation.limits.timeout,
        job.stalls, job.timeouts, job.data.overrides,
    )  # fmt: skip
