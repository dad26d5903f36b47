"""The runs that the workers of a supervisor hold, and the leases these runs are under. Their deadlines
are checked for worker processes that hang and so cannot check their own.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from itertools import repeat
from operator import attrgetter
from typing import Final, Generic, TypeVar

from attrs import define
from msgspec import Struct

from dibs.worker import messages
from dibs.worker.supervisor.workers import WorkerHandle

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


#: Seconds between two checks.
CHECK_EVERY: Final = 0.25
#: Seconds a worker process has after a deadline to send RunTimedOut or RunOverran. A process that sends
#: neither cannot do so: a handler holds its interpreter, or blocks its event loop.
MESSAGE_MARGIN: Final = 1.0


@define(eq=False)
class DeadlineWatch:
    """A check for worker processes that do not enforce the deadlines of their runs.

    `on_overdue` is called with such a worker. It is also called with a retiring worker (it must end because
    a run overran) that has not exited at its `retire_by`.
    """

    _held_runs: HeldRuns[WorkerHandle]
    _workers: Iterable[WorkerHandle]
    _on_overdue: Callable[[WorkerHandle], None]

    async def run(self) -> None:
        """Check every CHECK_EVERY seconds, until cancelled."""
        before = time.monotonic()
        while True:
            await asyncio.sleep(CHECK_EVERY)
            now = time.monotonic()
            # A late check shows that the supervisor was stopped or had no CPU. Messages of the workers may
            # wait in the pipes then, so the event loop first reads them for MESSAGE_MARGIN seconds.
            if now - before < CHECK_EVERY + MESSAGE_MARGIN / 2:
                self._check_workers(now)
            else:
                await asyncio.sleep(MESSAGE_MARGIN)
                now = time.monotonic()
            before = now

    def _check_workers(self, now: float) -> None:
        for worker in list(self._workers):
            if worker.exit_expected or not worker.killable:
                continue
            too_long = worker.retire_by is not None and worker.retire_by <= now
            if too_long or (not worker.ended_for_overrun and self._misses_deadline(worker, now)):
                self._on_overdue(worker)

    def _misses_deadline(self, worker: WorkerHandle, now: float) -> bool:
        """Return whether a run of the worker is past its deadline, and mark each such run as overrun."""
        found = False
        for held_run in self._held_runs.runs_of(worker):
            if _is_past_deadline(held_run, worker.started[held_run.run.index], now):
                held_run.overran = found = True
        return found

    def on_timed_out(self, worker: WorkerHandle, message: messages.RunTimedOut) -> None:
        """Extend the deadline of a run by the time that its process gives it to stop."""
        if held_run := self._held_runs.find_run(worker, message.index, message.fence):
            held_run.stop_deadline = time.monotonic() + message.seconds

    def on_overran(self, worker: WorkerHandle, message: messages.RunOverran) -> None:
        """Mark a run as overrun: only the exit of its process can stop it."""
        if held_run := self._held_runs.find_run(worker, message.index, message.fence):
            held_run.overran = True


def _is_past_deadline(held_run: HeldRun, started: float, now: float) -> bool:
    deadline = held_run.deadline(started)
    return deadline is not None and deadline + MESSAGE_MARGIN <= now
