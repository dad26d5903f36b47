"""The live workers of one supervisor, and the pause before a dead worker is replaced. The supervisor's
handle on a worker is a child process, or a task in the supervisor's own process.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator, MutableSequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final, Protocol

from attrs import define, field
from msgspec.structs import replace

from dibs.app import Dibs
from dibs.worker import messages
from dibs.worker.dispatch.in_flight import MAX_IN_FLIGHT
from dibs.worker.dispatch.worker import Worker
from dibs.worker.processes.child_main import ProcessSpec, encode_spec, log_lifespan_error
from dibs.worker.processes.child_process import (
    EXIT_NO_MAIN_GUARD,
    MISSING_MAIN_GUARD,
    SPAWN_CONTEXT,
    ChildProcess,
    SpawnedProcess,
)
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.processes.logs import current_log_config
from dibs.worker.processes.worker_main import build_worker, run_worker_process
from dibs.worker.work_plan import WorkPlan


class WorkerListener(Protocol):
    """The receiver of the messages of a worker. `on_exit` is called once, after the last message."""

    def on_message(self, worker: WorkerHandle, message: messages.FromWorker) -> None: ...
    def on_exit(self, worker: WorkerHandle, reason: str) -> None: ...


@define(eq=False)
class WorkerHandle:
    """One worker, with the state that its supervisor keeps about it."""

    #: False if the worker shares the process of the supervisor.
    killable: ClassVar[bool] = True

    #: One number for each run the worker can hold: when its handler was started, in seconds by
    #: time.monotonic(); 0 if the handler has not started.
    started: MutableSequence[float] = field(init=False)
    #: The process id; 0 until it is known, and for a worker in the supervisor's process.
    pid: int = field(default=0, init=False)
    #: True after the worker has sent ProcessReady.
    ready: bool = field(default=False, init=False)
    #: The lease of the last LeaseAdopted: the worker claims under it.
    lease: str = field(default="", init=False)
    #: True after the worker has sent WorkerDrained.
    drained: bool = field(default=False, init=False)
    #: True if the worker must end as soon as it has drained; its replacement has started.
    retiring: bool = field(default=False, init=False)
    #: When a retiring worker is killed if it has not exited, by time.monotonic(); None if it is not retiring,
    #: or was killed.
    retire_by: float | None = field(default=None, init=False)
    #: True if the supervisor stopped or killed the worker because runs overran. Its other runs are released.
    ended_for_overrun: bool = field(default=False, init=False)
    #: True if the supervisor shut the worker down, so that its exit is no crash.
    exit_expected: bool = field(default=False, init=False)
    #: Set after the exit of the worker, before the listener's `on_exit` is called.
    exited: asyncio.Event = field(factory=asyncio.Event, init=False)
    #: Why the worker could not start: an exception, or a text if it happened in another process.
    start_error: BaseException | str | None = field(default=None, init=False)
    #: True if another start may succeed, because the storage was unavailable.
    start_error_passes: bool = field(default=False, init=False)

    def send(self, message: messages.ToWorker) -> None:
        raise NotImplementedError

    def read_waiting(self) -> None:
        """Handle the messages that the worker has written so far; a local worker has none waiting."""

    def shut_down(self) -> None:
        """Kill the worker and expect its exit: its runs are released when the lease is dropped."""
        self.exit_expected = True
        self.kill()

    def kill(self) -> None:
        """Kill the worker with all its runs. The supervisor settles these runs in its `on_exit`."""
        raise NotImplementedError


class ProcessWorkerHandle(WorkerHandle):
    """A worker in a child process: a fork by `fork_server`, or a new interpreter if that is None."""

    def __init__(self, spec: ProcessSpec, listener: WorkerListener, fork_server: ForkServer | None) -> None:
        super().__init__()
        self._listener = listener
        spec = replace(spec, log=current_log_config())
        # `started` is in shared memory: the supervisor can read it after the process has died, and a write
        # costs no message.
        self.started: Any
        self._process: ChildProcess
        if fork_server is None:
            self.started = SPAWN_CONTEXT.RawArray("d", MAX_IN_FLIGHT)
            arguments = (self.started, encode_spec(spec))
            self._process = SpawnedProcess(run_worker_process, arguments, self._on_bytes, self._on_exit)
        else:
            self._process = forked = fork_server.fork(spec, self._on_bytes, self._on_exit)
            self.started = forked.started
        self._process.may_wait = True

    def send(self, message: messages.ToWorker) -> None:
        self._process.send(messages.encode(message))

    def read_waiting(self) -> None:
        self._process.read_waiting()

    def kill(self) -> None:
        self._process.kill()

    def _on_bytes(self, raw: bytes) -> None:
        message = messages.decode_from_worker(raw)
        if isinstance(message, messages.ProcessReady):
            # ProcessReady arrives before any claim, so every process that holds runs has a pid to kill.
            self.pid = self._process.pid = message.pid
        self._listener.on_message(self, message)

    def _on_exit(self, reason: str) -> None:
        if self._process.exit_code == EXIT_NO_MAIN_GUARD:
            self.start_error = MISSING_MAIN_GUARD
        self.exited.set()
        pid = self._process.pid
        self._listener.on_exit(
            self, f"worker process {pid} {reason}" if pid else f"a worker process {reason}"
        )


class LocalWorkerHandle(WorkerHandle):
    """A worker in this process, on this event loop. Its `kill` cannot stop runs on threads."""

    killable = False

    def __init__(self, app: Dibs, spec: ProcessSpec, listener: WorkerListener) -> None:
        super().__init__()
        self.started = [0.0] * MAX_IN_FLIGHT
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._worker: Worker | None = None
        self._task = self._loop.create_task(self._run(app, spec))

    async def _run(self, app: Dibs, spec: ProcessSpec) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._worker = await build_worker(
                    app, spec, self.started, self._forward_message, stack, killable=False
                )
                self._forward_message(messages.ProcessReady(0))
                await self._worker.ended
        except BaseException as error:  # noqa: BLE001 - the lifespan is the user's code
            if self._worker is None:
                self.start_error = error  # app.work() raises it
            else:
                log_lifespan_error(error)
        # call_soon, as in `_forward_message`, so that the listener gets the exit after the last message.
        self._loop.call_soon(self._on_exit)

    def _on_exit(self) -> None:
        self.exited.set()
        self._listener.on_exit(self, "the worker ended")

    def _forward_message(self, message: messages.FromWorker) -> None:
        # call_soon, not a call: the supervisor may reply at once, and the worker is in the middle of a step.
        self._loop.call_soon(self._listener.on_message, self, message)

    def send(self, message: messages.ToWorker) -> None:
        if self._worker is not None:
            self._worker.receive(message)

    def kill(self) -> None:
        if self._worker is None or self._worker.ended.done():
            # The worker is in its lifespan, before or after the yield.
            self._task.cancel()
        else:
            self._worker.abandon()


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
