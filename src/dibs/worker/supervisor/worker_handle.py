"""A worker as its supervisor holds it: in a process of its own, or in this one."""

from __future__ import annotations

import asyncio
from collections.abc import MutableSequence
from contextlib import AsyncExitStack
from typing import Any, Protocol

from msgspec.structs import replace

from dibs.client.app import Dibs
from dibs.worker import messages
from dibs.worker.dispatch.in_flight import MAX_IN_FLIGHT
from dibs.worker.dispatch.worker import Worker
from dibs.worker.processes.child_main import ProcessSpec, encode_spec
from dibs.worker.processes.child_process import ChildProcess
from dibs.worker.processes.fork_server import ForkServer
from dibs.worker.processes.isolated_executor import MISSING_MAIN_GUARD
from dibs.worker.processes.logs import current_log_config
from dibs.worker.processes.spawn import CONTEXT, EXIT_NO_MAIN_GUARD, SpawnedProcess
from dibs.worker.processes.worker_main import build_worker, run_worker_process


class WorkerListener(Protocol):
    """Who hears a member. Its end comes after everything it said."""

    def heard(self, member: WorkerHandle, message: messages.FromWorker) -> None: ...
    def gone(self, member: WorkerHandle, reason: str) -> None: ...


class WorkerHandle:
    """One worker, as far as its supervisor must remember it."""

    #: Whether its end would end what it runs.
    can_be_ended = True

    def __init__(self) -> None:
        #: One number a place: when the run there was entered, by time.monotonic(); 0 is not yet.
        self.started: MutableSequence[float]
        self.pid = 0
        self.ready = False
        #: The lease it claims under, as it said.
        self.lease = ""
        self.drained = False
        #: It is to end when it has drained; another has taken its place.
        self.leaving = False
        #: When it is ended, whatever its other runs do, by time.monotonic().
        self.leaves_at: float | None = None
        #: It is ended for a handler that did not stop in time; its other runs are not to blame.
        self.overdue = False
        #: Its end was asked for, so it is no crash.
        self.expected = False
        self.gone = asyncio.Event()
        #: Why it cannot work, as it said.
        self.broken: BaseException | str | None = None

    def send(self, message: messages.ToWorker) -> None:
        raise NotImplementedError

    def kill(self) -> None:
        """End it now, with all it runs."""
        self.expected = True
        self.end()

    def end(self) -> None:
        """The same, and what it leaves behind is to be settled."""
        raise NotImplementedError


class ProcessWorkerHandle(WorkerHandle):
    """A worker in a process of its own."""

    def __init__(self, spec: ProcessSpec, ears: WorkerListener, nursery: ForkServer | None) -> None:
        super().__init__()
        self._ears = ears
        spec = replace(spec, log=current_log_config())
        # An array in shared memory: it outlives the process, and to write it costs no message.
        self.started: Any
        self._process: ChildProcess
        if nursery is None:
            self.started = CONTEXT.RawArray("d", MAX_IN_FLIGHT)
            self._process = SpawnedProcess(
                run_worker_process, (self.started, encode_spec(spec)), self._hear, self._end
            )
        else:
            self._process = forked = nursery.fork(spec, self._hear, self._end)
            self.started = forked.started

    def send(self, message: messages.ToWorker) -> None:
        self._process.send(messages.encode(message))

    def end(self) -> None:
        self._process.kill()

    def _hear(self, raw: bytes) -> None:
        message = messages.decode_from_worker(raw)
        if isinstance(message, messages.ProcessReady):
            # Before it holds anything: what holds something can be ended.
            self.pid = self._process.pid = message.pid
        self._ears.heard(self, message)

    def _end(self, reason: str) -> None:
        if self._process.exit_code == EXIT_NO_MAIN_GUARD:
            self.broken = MISSING_MAIN_GUARD
        self.gone.set()
        pid = self._process.pid
        self._ears.gone(self, f"worker process {pid} {reason}" if pid else f"a worker process {reason}")


class LocalWorkerHandle(WorkerHandle):
    """A worker in this process, on this loop. What runs on its threads cannot be ended."""

    can_be_ended = False

    def __init__(self, app: Dibs, spec: ProcessSpec, ears: WorkerListener) -> None:
        super().__init__()
        self.started = [0.0] * MAX_IN_FLIGHT
        self._loop = asyncio.get_running_loop()
        self._ears = ears
        self._worker: Worker | None = None
        self._task = self._loop.create_task(self._work(app, spec))

    async def _work(self, app: Dibs, spec: ProcessSpec) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._worker = await build_worker(app, spec, self.started, self._tell, stack, mortal=False)
                self._tell(messages.ProcessReady(0))
                await self._worker.over
        except BaseException as error:  # noqa: BLE001 - among others the user's code; told to the caller
            self.broken = error
        # Soon, as everything else it said.
        self._loop.call_soon(self._end)

    def _end(self) -> None:
        self.gone.set()
        self._ears.gone(self, "the worker ended")

    def _tell(self, message: messages.FromWorker) -> None:
        # Soon, and not now: the supervisor may answer, and the worker is in the midst of something.
        self._loop.call_soon(self._ears.heard, self, message)

    def send(self, message: messages.ToWorker) -> None:
        if self._worker is not None:
            self._worker.receive(message)

    def end(self) -> None:
        if self._worker is not None:
            self._worker.abandon()
        else:
            self._task.cancel()
