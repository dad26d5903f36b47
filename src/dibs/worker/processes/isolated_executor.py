"""Handlers with executor="process": each run has a child process to itself while it lasts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Struct

from dibs.client.calls.current_job import RunStorage
from dibs.client.calls.error_info import error_of
from dibs.errors import ConfigurationError, DibsError
from dibs.model.run_outcome import Died, Raised, StopReason, Verdict
from dibs.worker import messages
from dibs.worker.execution import exception_info as blame
from dibs.worker.execution.invocation import Invocation
from dibs.worker.processes.isolated_main import run_isolated_process
from dibs.worker.processes.spawn import EXIT_NO_MAIN_GUARD, SpawnedProcess

MISSING_MAIN_GUARD: Final = (
    "the script starts its worker when it is imported, and every worker process imports it: put what starts "
    'the worker under `if __name__ == "__main__":`'
)


#: Seconds a handler has to end by itself once somebody asked for it to stop.
CANCEL_GRACE: Final = 5.0


class IsolatedExecutor:
    """The child processes of one worker. A child that ended a run well is kept for the next."""

    def __init__(self, storage: RunStorage, encoded_spec: bytes) -> None:
        self._storage = storage
        self._spec = encoded_spec
        self._loop = asyncio.get_running_loop()
        self._idle: list[IsolatedProcess] = []
        self._busy: dict[tuple[str, str, int], IsolatedProcess] = {}
        self._closed = False

    async def prepare(self) -> None:
        """Start one, so that what is wrong with starting is known before anything is claimed."""
        self._idle.append(await self._begin())

    async def run(self, run: Invocation, enter: Callable[[], bool]) -> Verdict:
        """Run a job in a child. Never raises."""
        try:
            child = self._idle.pop() if self._idle else await self._begin()
        except ConfigurationError as error:
            return Raised(error=error_of(error))
        self._busy[run.key] = child
        try:
            if not enter():
                return Raised(error=blame.plain("Interrupted", "it was to stop before it had begun"))
            return await child.perform(run)
        finally:
            del self._busy[run.key]
            self._keep(child)

    async def _begin(self) -> IsolatedProcess:
        child = IsolatedProcess(self._storage, self._spec)
        await child.ready()
        return child

    def _keep(self, child: IsolatedProcess) -> None:
        if self._closed:
            child.kill()
        elif child.alive:
            self._idle.append(child)

    def interrupt(self, run: Invocation, stop: StopReason) -> None:
        """Ask the run of a child to stop, and end the child if it does not, or was not asked by name."""
        child = self._busy.get(run.key)
        if child is None:
            return
        if stop == "cancel":
            child.send(messages.CancelRun())
            self._loop.call_later(CANCEL_GRACE, self._end_stubborn, run, child)
        else:
            child.kill()

    def _end_stubborn(self, run: Invocation, child: IsolatedProcess) -> None:
        if self._busy.get(run.key) is child:
            child.kill()

    def close(self) -> None:
        """End all children."""
        self._closed = True
        for child in [*self._idle, *self._busy.values()]:
            child.kill()


class IsolatedProcess:
    """One child process, which runs one job at a time."""

    def __init__(self, storage: RunStorage, encoded_spec: bytes) -> None:
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._verdict: asyncio.Future[Verdict] | None = None
        self._reports: set[asyncio.Task[None]] = set()
        self._process = SpawnedProcess(run_isolated_process, (encoded_spec,), self._hear, self._end)

    @property
    def alive(self) -> bool:
        return self._process.alive

    async def ready(self) -> None:
        """Wait until it can run jobs. Raises ConfigurationError."""
        await self._ready

    async def perform(self, run: Invocation) -> Verdict:
        self._verdict = self._loop.create_future()
        seconds = None if run.limits.timeout is None else run.limits.timeout / 1000
        if self.alive:
            self.send(messages.RunJob(run.handler.queue, run.job, seconds))
        else:
            self._end("ended before it was asked")
        return await self._verdict

    def send(self, message: Struct) -> None:
        self._process.send(messages.encode(message))

    def kill(self) -> None:
        self._process.kill()

    def _hear(self, raw: bytes) -> None:
        message: messages.FromIsolated = messages.decode_from_isolated(raw)
        match message:
            case messages.ProcessReady():
                self._ready.set_result(None)
            case messages.StartFailed(why):
                self._ready.set_exception(ConfigurationError(why))
            case messages.RunFinished(verdict):
                if self._verdict is not None and not self._verdict.done():
                    self._verdict.set_result(verdict)
            case messages.ReportProgress() as progress:
                task = self._loop.create_task(self._report(progress))
                self._reports.add(task)
                task.add_done_callback(self._reports.discard)

    async def _report(self, progress: messages.ReportProgress) -> None:
        try:
            status: str = await self._storage.report(
                progress.queue, progress.id, progress.fence, progress.value
            )
        except DibsError:
            status = ""
        self.send(messages.ProgressReported(status))

    def _end(self, reason: str) -> None:
        if not self._ready.done():
            why = (
                MISSING_MAIN_GUARD
                if self._process.exit_code == EXIT_NO_MAIN_GUARD
                else f"a handler's process {reason} at start"
            )
            self._ready.set_exception(ConfigurationError(why))
        if self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(Died(blame.plain("ProcessDied", f"the process that ran it {reason}")))


def encode_spec(spec: Struct) -> bytes:
    """Return what a process of ours is to be, for the way."""
    return msgspec.msgpack.encode(spec)
