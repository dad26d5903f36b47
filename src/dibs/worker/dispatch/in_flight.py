"""The runs of a worker process from their claim until the storage has settled them.

`WaitingRuns` warns of runs that fill a process while they wait for other jobs, which it therefore
cannot start. `Recycling` decides when a process claims no more, ends its runs, and is replaced.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping, MutableSequence, Sequence
from typing import Final

from attrs import define, field

from dibs.client.calls.handler import PROCESS_UNITS, Handler
from dibs.model.job import Job
from dibs.model.requests import Complete, Fail
from dibs.worker import messages
from dibs.worker.dispatch.fairness import Capacity
from dibs.worker.dispatch.flow_wakeups import FlowWakeups
from dibs.worker.dispatch.queue_state import QueueState
from dibs.worker.dispatch.round_trip import Reply
from dibs.worker.execution.executor import runs_on_thread
from dibs.worker.execution.invocation import Invocation
from dibs.worker.execution.outcome import counter_name, fallback_action, log_action
from dibs.worker.execution.process_limits import (
    ProcessLimits,
    count_descriptors,
    memory_of,
    most_descriptors,
    next_descriptor,
)

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


#: Seconds between two looks at the runs of a process without free capacity.
LOOK_EVERY: Final = 1.0
#: Number of looks in a row that must find only runs that wait, before the warning. It is repeated after
#: REPEAT_AFTER further looks.
PATIENCE: Final = 5
REPEAT_AFTER: Final = 60


@define(eq=False)
class WaitingRuns:
    """The looks at the runs of one process. While it has free capacity, it takes none."""

    _capacity: Capacity
    _in_flight: InFlightRuns
    _queues: Mapping[str, QueueState]
    _timer: asyncio.TimerHandle | None = field(default=None, init=False)
    _found: int = field(default=0, init=False)

    def watch(self) -> None:
        """Look at the runs from now on if no further run fits into the process."""
        if self._timer is None and self._is_full:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    @property
    def _is_full(self) -> bool:
        return self._capacity.free < min(queue.size for queue in self._queues.values())

    def _look(self) -> None:
        self._timer = None
        # Started runs have a `current`, also those whose process is about to enter the handler.
        runs = [run for run in self._in_flight if hasattr(run, "current") and not run.finished]
        if not self._is_full or not runs or not all(run.current.waits for run in runs):
            self._found = 0
        else:
            if self._found % REPEAT_AFTER == PATIENCE - 1:
                self._warn(runs)
            self._found += 1
        self.watch()

    def _warn(self, runs: list[Invocation]) -> None:
        numbers = Counter(run.handler.queue for run in runs)
        parts = []
        for name, number in numbers.items():
            queue = self._queues[name]
            function = queue.handler.function
            parts.append(
                f"{name} ({function.__module__}.{function.__qualname__}): {number} runs with "
                f"{number * queue.size} units"
            )
        logger.warning(
            "all runs of this process wait for other jobs and take its capacity of %d units, so no other job "
            "starts here, also none that they wait for: %s. Serve the awaited queues by another worker "
            "(--queues), or make a flow, whose jobs start when the results that they need exist",
            self._capacity.units, "; ".join(parts), extra={"queues": [*numbers]},
        )  # fmt: skip


#: Seconds between two looks at the memory.
MEMORY_CHECK_EVERY: Final = 0.1
#: A process with fewer free file descriptors claims no jobs: their handlers could open no file or connection.
LEAST_FREE: Final = 64
#: The same, as a part of all file descriptors, for low limits.
LEAST_FREE_PART: Final = 1 / 8
#: Seconds until a process that cannot be replaced counts its file descriptors again.
COUNT_AGAIN: Final = 1.0


@define(eq=False)
class Recycling:
    """The limits of a worker process, and whether it has reached one of them.

    A worker process that has reached a limit asks its supervisor once for a replacement. A supervisor that
    runs jobs in its own process has no limits, and waits for free file descriptors.
    """

    _limits: ProcessLimits
    _in_flight: InFlightRuns
    _notify: Callable[[messages.FromWorker], None]
    #: Called when the process may claim again.
    _wake_worker: Callable[[], None]
    _replaceable: bool
    _asked: bool = field(default=False, init=False)
    _look_at: float = field(default=0.0, init=False)
    #: True from the time at which file descriptors became scarce until enough are free.
    _scarce: bool = field(default=False, init=False)

    def may_claim(self, now: float) -> bool:
        """Return whether the process is below its limits and has free file descriptors."""
        if self._asked:
            return False
        if self._in_flight.claims_left <= 0:
            self._ask(f"has made {self._limits.max_runs:,} runs, as max_runs says", planned=True)
        elif (memory := self._excess_memory(now)) is not None:
            self._ask(f"uses {memory / 1e6:,.0f} MB, more than max_memory allows")
        elif (free := self._scarce_descriptors()) is not None:
            self._pause(f"has only {free} of its {most_descriptors():,} file descriptors left")
        else:
            return True
        return False

    def _excess_memory(self, now: float) -> int | None:
        """Return the memory of this process in bytes if it is above the limit."""
        most = self._limits.max_memory
        if most is None or now < self._look_at or not self._in_flight.claimed:
            return None
        self._look_at = now + MEMORY_CHECK_EVERY
        memory = memory_of(os.getpid())
        return memory if memory is not None and memory > most else None

    def _scarce_descriptors(self) -> int | None:
        """Return the number of free file descriptors if there are too few for another claim."""
        most = most_descriptors()
        least = min(LEAST_FREE, int(most * LEAST_FREE_PART))
        following = next_descriptor()
        if following is not None and following < most - least and not self._scarce:
            return None
        count = count_descriptors()
        free = 0 if count is None else most - count
        return free if free < least * (1 + self._scarce) else None

    def _pause(self, reason: str) -> None:
        if self._replaceable:
            self._ask(reason)
            return
        if not self._scarce:
            self._scarce = True
            logger.warning("this process %s: it claims no jobs until some are closed", reason)
        asyncio.get_running_loop().call_later(COUNT_AGAIN, self._wake_worker)

    def _ask(self, reason: str, *, planned: bool = False) -> None:
        self._asked = True
        self._notify(messages.WorkerSpent(reason, planned))
