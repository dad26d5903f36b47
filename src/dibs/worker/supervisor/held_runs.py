"""The runs that the workers of a supervisor hold, and the leases these runs are under."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable
from itertools import repeat
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct

from dibs.worker import messages

W = TypeVar("W", bound=Hashable)


class HeldRun(Struct, eq=False, gc=False):
    """One run that a worker has claimed and not yet settled, as the supervisor knows it."""

    queue: str
    lease: str
    run: messages.ClaimedRun
    #: When the message about the claim arrived, by time.monotonic().
    received_at: float = 0.0
    #: When the run must have stopped after it was cancelled at its timeout, by time.monotonic(); 0 before.
    stop_deadline: float = 0.0
    #: True if the run did not stop after its timeout.
    overran: bool = False
    #: True if the worker was asked to cancel the run.
    cancel_sent: bool = False

    def deadline(self, started: float) -> float | None:
        """Return when a run whose handler began at `started` must have ended, by time.monotonic().

        Return None if the handler has not begun, has no timeout, or has overrun already.
        """
        if not started or self.run.timeout is None or self.overran:
            return None
        return max(self.stop_deadline, started + self.run.timeout / 1000)


class HeldRuns(Generic[W]):
    """The runs that each worker holds, from its message RunsClaimed to its message RunsSettled."""

    def __init__(self) -> None:
        self._by_worker: dict[W, dict[int, HeldRun]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_worker.values()))

    def add(self, worker: W, message: messages.RunsClaimed) -> None:
        queue, lease, now = repeat(message.queue), repeat(message.lease), repeat(time.monotonic())
        # A map of a Struct takes half the time of a comprehension.
        held_runs = map(HeldRun, queue, lease, message.runs, now)
        held = self._by_worker.setdefault(worker, {})
        held.update(zip(map(attrgetter("index"), message.runs), held_runs, strict=True))

    def remove(self, worker: W, message: messages.RunsSettled) -> Counter[str]:
        """Remove the settled runs, and return the number of runs for each counter of QueueReport."""
        held, numbers = self._by_worker.get(worker, {}), Counter[str]()
        for counter, indexes in message.indexes_by_counter.items():
            before = len(held)
            for index in indexes:
                held.pop(index, None)
            numbers[counter] = before - len(held)
        return numbers

    def count_by_queue(self) -> Counter[str]:
        """Return the number of held runs of each queue."""
        return Counter(run.queue for held in self._by_worker.values() for run in held.values())

    def find_run(self, worker: W, index: int, fence: int) -> HeldRun | None:
        """Return the run that a worker holds at an index, or None if it is not the run with this fence."""
        held_run = self._by_worker.get(worker, {}).get(index)
        return held_run if held_run is not None and held_run.run.fence == fence else None

    def count_under(self, lease: str) -> int:
        """Return the number of runs under a lease, in O(held runs). Only an old lease is asked for."""
        return sum(run.lease == lease for held in self._by_worker.values() for run in held.values())

    def runs_of(self, worker: W) -> list[HeldRun]:
        """Return the runs of a worker as a new list, so that runs may be removed while it is read."""
        return list(self._by_worker.get(worker, {}).values())

    def remove_worker(self, worker: W) -> None:
        self._by_worker.pop(worker, None)

    def take_runs_to_cancel(
        self, queue: str, ids: tuple[str, ...], now: int
    ) -> dict[W, list[tuple[str, str, int]]]:
        """Return, for each worker, the runs to cancel as (queue, id, fence), each run once.

        `ids` are the jobs whose cancellation the storage reported at `now`, in ms by its clock. A run that
        was claimed at `now` or later is another run of the same id, and is left out.
        """
        cancelled_ids, runs_by_worker = set(ids), dict[W, list[tuple[str, str, int]]]()
        for worker, held in self._by_worker.items():
            for held_run in held.values():
                run = held_run.run
                if held_run.queue != queue or held_run.cancel_sent:
                    continue
                if run.id in cancelled_ids and run.claimed_at < now:
                    # The message is sent once: repeated messages would fill the pipe of a process that hangs.
                    held_run.cancel_sent = True
                    runs_by_worker.setdefault(worker, []).append((queue, run.id, run.fence))
        return runs_by_worker
