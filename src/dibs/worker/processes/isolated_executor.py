"""The executor of handlers with executor="process". Each run has a child process of its own.

After a run, its process is kept for the next run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from dibs.client.calls.current_job import RunStorage
from dibs.client.calls.error_info import error_from_exception
from dibs.errors import ConfigurationError, DibsError
from dibs.model.run_outcome import Died, Raised, StopReason, Verdict
from dibs.worker import messages
from dibs.worker.execution import exception_info
from dibs.worker.execution.invocation import Invocation, interrupted_verdict
from dibs.worker.processes.isolated_main import run_isolated_process
from dibs.worker.processes.spawn import EXIT_NO_MAIN_GUARD, MISSING_MAIN_GUARD, SpawnedProcess

#: Seconds a handler has to return after its job was cancelled; then its process is killed.
CANCEL_GRACE: Final = 5.0
#: Number of processes in a row that a signal may kill at their start before a worker gives up.
KILLED_STARTS: Final = 5

logger = logging.getLogger("dibs.worker")


class KilledAtStart(ConfigurationError):
    """A signal killed the process before it could run a job; another process may start."""


class IsolatedExecutor:
    """The isolated processes of one worker. A process that survives its run is used again."""

    def __init__(self, storage: RunStorage, encoded_spec: bytes) -> None:
        self._storage = storage
        self._spec = encoded_spec
        self._loop = asyncio.get_running_loop()
        self._idle: list[IsolatedProcess] = []
        self._busy: dict[tuple[str, str, int], IsolatedProcess] = {}
        self._closed = False

    async def prepare(self) -> None:
        """Start one process before the first claim, to find errors of the start early.

        Raise ConfigurationError if the process cannot start. Try again if a signal killed it, for example of
        the OOM killer.
        """
        for attempt in range(KILLED_STARTS):
            try:
                self._idle.append(await self._start_process())
                return
            except KilledAtStart as error:
                if attempt == KILLED_STARTS - 1:
                    raise
                logger.warning("%s, trying again", error)

    async def run(self, invocation: Invocation, enter: Callable[[], bool]) -> Verdict:
        """Run the job in an isolated process and return its verdict. Never raise.

        Call `enter` right before the handler starts; do not start the handler if `enter` returns False.
        """
        try:
            process = self._idle.pop() if self._idle else await self._start_process()
        except ConfigurationError as error:
            return Raised(error=error_from_exception(error))
        self._busy[invocation.key] = process
        try:
            if not enter():
                return interrupted_verdict()
            return await process.run(invocation)
        finally:
            del self._busy[invocation.key]
            self._keep_or_kill(process)

    async def _start_process(self) -> IsolatedProcess:
        process = IsolatedProcess(self._storage, self._spec)
        try:
            await process.wait_ready()
        except BaseException:  # also a cancellation: nothing else would end this process
            process.kill()
            raise
        return process

    def _keep_or_kill(self, process: IsolatedProcess) -> None:
        if self._closed:
            process.kill()
        elif process.alive:
            self._idle.append(process)

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Stop a run. A cancelled run has CANCEL_GRACE seconds; for another reason, kill its process."""
        process = self._busy.get(invocation.key)
        if process is None:
            return
        if stop == "cancel":
            process.send(messages.CancelRun())
            self._loop.call_later(CANCEL_GRACE, self._kill_if_running, invocation, process)
        else:
            process.kill()

    def _kill_if_running(self, invocation: Invocation, process: IsolatedProcess) -> None:
        if self._busy.get(invocation.key) is process:
            process.kill()

    def ask_to_exit(self) -> None:
        """Kill the processes that run a job, and ask the others to leave their lifespan and exit."""
        self._closed = True
        for process in self._busy.values():
            process.kill()
        for process in self._idle:
            process.send(messages.ExitIsolated())

    async def close(self) -> None:
        """End all isolated processes, and wait until they have exited. If cancelled, kill them.

        There is no timeout: the supervisor kills this process, and so all of them, when its time is over.
        """
        if not self._closed:
            self.ask_to_exit()
        try:
            for process in self._idle:
                await process.exited.wait()
        finally:
            for process in self._idle:
                process.kill()


class IsolatedProcess:
    """A child process that runs one job at a time. Its progress reports are sent to `storage` from here."""

    def __init__(self, storage: RunStorage, encoded_spec: bytes) -> None:
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._verdict: asyncio.Future[Verdict] | None = None
        #: Set when the process has ended.
        self.exited = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()
        self._process = SpawnedProcess(run_isolated_process, (encoded_spec,), self._on_message, self._on_exit)

    @property
    def alive(self) -> bool:
        return self._process.alive

    async def wait_ready(self) -> None:
        """Wait until the process can run jobs. Raise ConfigurationError if it cannot start."""
        await self._ready

    async def run(self, invocation: Invocation) -> Verdict:
        """Run the job and return its verdict, which is Died if the process ended during the run."""
        self._verdict = self._loop.create_future()
        seconds = None if invocation.limits.timeout is None else invocation.limits.timeout / 1000
        if self.alive:
            self.send(messages.RunJob(invocation.handler.queue, invocation.job, seconds))
        else:
            self._on_exit("ended before the run began")
        return await self._verdict

    def send(self, message: Struct) -> None:
        self._process.send(messages.encode(message))

    def kill(self) -> None:
        self._process.kill()

    def _on_message(self, raw: bytes) -> None:
        message: messages.FromIsolated = messages.decode_from_isolated(raw)
        match message:
            case messages.ProcessReady():
                if not self._ready.done():  # else the wait was cancelled
                    self._ready.set_result(None)
            case messages.StartFailed(reason):
                if not self._ready.done():
                    self._ready.set_exception(ConfigurationError(reason))
            case messages.RunFinished(verdict):
                if self._verdict is not None and not self._verdict.done():
                    self._verdict.set_result(verdict)
            case messages.ReportProgress() as progress:
                task = self._loop.create_task(self._relay_progress(progress))
                self._reports.add(task)
                task.add_done_callback(self._reports.discard)

    async def _relay_progress(self, progress: messages.ReportProgress) -> None:
        try:
            status: str = await self._storage.report(
                progress.queue, progress.id, progress.fence, progress.value
            )
        except DibsError:
            status = ""
        self.send(messages.ProgressReported(status))

    def _on_exit(self, reason: str) -> None:
        self.exited.set()
        if not self._ready.done():
            self._ready.set_exception(self._start_error(reason))
        if self._verdict is not None and not self._verdict.done():
            died = exception_info.make_error("ProcessDied", f"the process that ran it {reason}")
            self._verdict.set_result(Died(died))

    def _start_error(self, reason: str) -> ConfigurationError:
        code = self._process.exit_code
        if code == EXIT_NO_MAIN_GUARD:
            return ConfigurationError(MISSING_MAIN_GUARD)
        kind = KilledAtStart if code is not None and code < 0 else ConfigurationError
        return kind(f"the process of a handler {reason} while it was starting")
