"""The workers of one supervisor: which of them live, and how soon a dead worker is replaced."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Final

from dibs.client.app import Dibs
from dibs.worker.processes.child_main import ProcessSpec
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.supervisor.worker_handle import (
    LocalWorkerHandle,
    ProcessWorkerHandle,
    WorkerHandle,
    WorkerListener,
)
from dibs.worker.work_plan import WorkPlan

#: Seconds until a dead worker is replaced: the first pause, doubled after each short life, and the longest.
RESTART_PAUSE: Final = (0.1, 5.0)
#: Seconds of life after which the pause starts again at its shortest.
STABLE_LIFETIME: Final = 10.0
#: Short lives after which no further start is tried, if no worker was ever ready.
MAX_FAILED_STARTS: Final = 5


class Workers:
    """The live workers, to iterate over; a worker leaves when the supervisor removes it after its exit."""

    def __init__(self, app: Dibs, plan: WorkPlan, fork_server: ForkServer | None) -> None:
        self._app = app
        self._plan = plan
        self._fork_server = fork_server
        self._started_at: dict[WorkerHandle, float] = {}
        self._short_lives = 0

    def __iter__(self) -> Iterator[WorkerHandle]:
        return iter(list(self._started_at))

    def start(self, listener: WorkerListener) -> None:
        """Start one worker: a child process, or a task in this process if the plan has no processes."""
        plan = self._plan
        spec = ProcessSpec(app=plan.reference, queues=plan.queues, parent=os.getpid(), poll=plan.poll)
        worker: WorkerHandle = (
            ProcessWorkerHandle(spec, listener, self._fork_server)
            if plan.processes
            else LocalWorkerHandle(self._app, spec, listener)
        )
        self._started_at[worker] = time.monotonic()

    def remove(self, worker: WorkerHandle) -> float:
        """Forget a worker that has exited, and return how many seconds it lived."""
        return time.monotonic() - self._started_at.pop(worker)

    def next_restart_pause(self, lifetime: float) -> float:
        """Return the seconds to wait before a worker is replaced that lived for `lived` seconds."""
        if lifetime >= STABLE_LIFETIME:
            self._short_lives = 0
        pause: float = min(RESTART_PAUSE[0] * 2**self._short_lives, RESTART_PAUSE[1])
        self._short_lives = min(self._short_lives + 1, 20)
        return pause

    @property
    def starts_keep_failing(self) -> bool:
        """True if MAX_FAILED_STARTS workers in a row lived less than STABLE_LIFETIME seconds."""
        return self._short_lives >= MAX_FAILED_STARTS

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids that are known, in ascending order."""
        return tuple(sorted(worker.pid for worker in self._started_at if worker.pid))

    async def shut_down(self) -> None:
        """Kill all workers and wait until they have exited."""
        workers = list(self._started_at)
        for worker in workers:
            worker.shut_down()
        for worker in workers:
            await worker.exited.wait()
