"""The live workers of one supervisor, and the pause before a dead worker is replaced."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Final

from dibs.app import Dibs
from dibs.worker.processes.child_main import ProcessSpec
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.supervisor.worker_handle import (
    LocalWorkerHandle,
    ProcessWorkerHandle,
    WorkerHandle,
    WorkerListener,
)
from dibs.worker.work_plan import WorkPlan

#: Seconds until a dead worker is replaced: the first pause and the longest. The pause doubles each time a
#: worker has lived for a short time only.
RESTART_PAUSE: Final = (0.1, 5.0)
#: Seconds after which a worker counts as stable: if it dies later, the pause is the shortest again.
STABLE_LIFETIME: Final = 10.0
#: Number of short-lived workers in a row after which `run` fails, if no worker was ever ready.
MAX_FAILED_STARTS: Final = 5
#: Seconds after which a worker that was killed and has not exited is killed again.
KILL_AGAIN: Final = 1.0


class Workers:
    """The live workers, as an iterable. The supervisor removes a worker after its exit."""

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
        spec = ProcessSpec(
            app=plan.reference,
            queues=plan.queues,
            parent=os.getpid(),
            poll=plan.poll,
            limits=plan.limits,
            folder=self._app._storage_handle.folder,  # noqa: SLF001 - the worker is a part of dibs
        )
        worker: WorkerHandle = (
            ProcessWorkerHandle(spec, listener, self._fork_server)
            if plan.processes
            else LocalWorkerHandle(self._app, spec, listener)
        )
        self._started_at[worker] = time.monotonic()

    def start_missing(self, listener: WorkerListener) -> None:
        """Start workers until as many as planned may claim, but let no more than twice as many live.

        Workers that end their runs before they exit are not counted among those that may claim. Without the
        second limit, runs of an hour and a limit of one run would start a process for each job.
        """
        planned = max(1, self._plan.processes)
        missing = planned - sum(not worker.retiring for worker in self._started_at)
        for _ in range(min(missing, 2 * planned - len(self._started_at))):
            self.start(listener)

    def remove(self, worker: WorkerHandle) -> float:
        """Remove a worker that has exited, and return its lifetime in seconds."""
        return time.monotonic() - self._started_at.pop(worker)

    def next_restart_pause(self, lifetime: float) -> float:
        """Return the pause in seconds before the replacement of a worker that lived for `lifetime` seconds.

        Each call doubles the pause of the next call. A lifetime of STABLE_LIFETIME or more resets it.
        """
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
            await _kill_until_exited(worker)


async def _kill_until_exited(worker: WorkerHandle) -> None:
    """Wait for the exit of a killed worker. Kill it again if it takes long.

    A kill only cancels a worker in this process: its lifespan, and its wait for isolated processes, end by
    one cancellation each.
    """
    while not worker.exited.is_set():
        try:
            async with asyncio.timeout(KILL_AGAIN):
                await worker.exited.wait()
        except TimeoutError:
            worker.kill()
