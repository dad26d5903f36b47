"""The executor of handlers with executor="process". Each run has a child process of its own.

After a run, its process is kept for the next run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from dibs.client.calls.current_job import RunStorage
from dibs.client.calls.failure import error_from_exception
from dibs.errors import ConfigurationError, DibsError
from dibs.model.run_outcome import Died, NotEntered, Raised, StopReason, Verdict
from dibs.worker import messages
from dibs.worker.execution import exception_info
from dibs.worker.execution.invocation import Invocation, interrupted_verdict
from dibs.worker.execution.process_limits import memory_of
from dibs.worker.processes.child_process import EXIT_NO_MAIN_GUARD, MISSING_MAIN_GUARD, SpawnedProcess
from dibs.worker.processes.isolated_main import run_isolated_process

#: Seconds a handler has to return after its job was cancelled; then its process is killed.
CANCEL_GRACE: Final = 5.0
#: Number of processes in a row that a signal may kill at their start before a worker gives up.
KILLED_STARTS: Final = 5
#: Seconds until a handler must have begun: the start of its process with the lifespan, and the transfer of
#: the job to it.
START_TIMEOUT: Final = 300.0
#: Seconds until a run is released after a signal killed its process at the start: the memory may be full.
KILLED_START_PAUSE: Final = 1.0

logger = logging.getLogger("dibs.worker")


class KilledAtStart(ConfigurationError):
    """A signal killed the process before it could run a job; another process may start."""


class IsolatedExecutor:
    """The isolated processes of one worker. A process that survives its run is used again.

    `specs` has the encoded spec of the processes for each queue. A process with more than `max_memory` bytes
    of resident memory is not used again.
    """

    def __init__(
        self, storage: RunStorage, specs: Mapping[str, bytes], max_memory: int | None = None
    ) -> None:
        self._storage = storage
        self._specs = specs
        self._max_memory = max_memory
        self._loop = asyncio.get_running_loop()
        #: The processes without a run, also those that leave their lifespan before they exit.
        self._idle: list[IsolatedProcess] = []
        self._busy: dict[tuple[str, str, int], IsolatedProcess] = {}
        self._closed = False

    async def prepare(self) -> None:
        """Start one process of each kind before the first claim, to find errors of the start early.

        Raise ConfigurationError if a process cannot start. Try again if a signal killed it, for example of
        the OOM killer.
        """
        for spec in dict.fromkeys(self._specs.values()):
            await self._prepare(spec)

    async def _prepare(self, spec: bytes) -> None:
        for attempt in range(KILLED_STARTS):
            try:
                self._idle.append(await self._start_process(spec))
                return
            except KilledAtStart as error:
                if attempt == KILLED_STARTS - 1:
                    raise
                logger.warning("%s, trying again", error)

    async def run(self, invocation: Invocation, entered: Callable[[], None]) -> Verdict:
        """Run the job in an isolated process and return its verdict. Never raise.

        Call `entered` when the process has entered the handler, within START_TIMEOUT seconds. A run whose
        process dies before that is released.
        """
        spec = self._specs[invocation.handler.queue]
        process = self._take_idle(spec) or IsolatedProcess(self._storage, spec)
        self._busy[invocation.key] = process
        try:
            return await self._run_in(process, invocation, entered)
        except TimeoutError:
            await process.exited.wait()  # so that it is not kept for the next run
            return _start_timeout_verdict()
        except KilledAtStart as error:
            return await self._verdict_on_killed_start(invocation, error)
        except ConfigurationError as error:
            return Raised(error=error_from_exception(error))
        finally:
            del self._busy[invocation.key]
            self._keep_or_kill(process)

    def _take_idle(self, spec: bytes) -> IsolatedProcess | None:
        self._idle = [process for process in self._idle if process.alive]
        for process in reversed(self._idle):
            if process.spec == spec and not process.leaving:
                self._idle.remove(process)
                return process
        return None

    async def _run_in(
        self, process: IsolatedProcess, invocation: Invocation, entered: Callable[[], None]
    ) -> Verdict:
        """Run the job in a process. Raise TimeoutError if the handler is not entered in time."""

        def on_entered() -> None:
            if not limit.expired():
                limit.reschedule(None)
                entered()

        try:
            async with asyncio.timeout(START_TIMEOUT) as limit:
                await process.wait_ready()
                if invocation.stop_reason is not None:
                    return interrupted_verdict()
                return await process.run(invocation, on_entered)
        except BaseException:  # also a cancellation: nothing else would end this process
            process.kill()
            raise

    async def _verdict_on_killed_start(self, invocation: Invocation, error: KilledAtStart) -> Verdict:
        if invocation.stop_reason is None:
            logger.warning("%s/%s: %s; the job is released", *invocation.key[:2], error)
            await asyncio.sleep(KILLED_START_PAUSE)
        return NotEntered()

    async def _start_process(self, spec: bytes) -> IsolatedProcess:
        process = IsolatedProcess(self._storage, spec)
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
            self._replace_large(process)

    def _replace_large(self, process: IsolatedProcess) -> None:
        if self._max_memory is None or (memory := memory_of(process.pid) or 0) <= self._max_memory:
            return
        logger.warning(
            "process %d of a handler uses %s MB, more than max_memory allows: it is replaced",
            process.pid, f"{memory / 1e6:,.0f}",
        )  # fmt: skip
        process.leave()

    def interrupt(self, invocation: Invocation, stop: StopReason) -> None:
        """Stop a run. A cancelled run has CANCEL_GRACE seconds; for another reason, kill its process.

        Also kill a process that still starts: its lifespan may take long.
        """
        process = self._busy.get(invocation.key)
        if process is None:
            return
        if stop == "cancel" and process.ready:
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
            process.leave()

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
    """A child process that runs one job at a time. Its reports are sent to `storage` from here."""

    def __init__(self, storage: RunStorage, spec: bytes) -> None:
        #: The encoded spec of the process.
        self.spec = spec
        self._storage = storage
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._verdict: asyncio.Future[Verdict] | None = None
        #: The latest run of the process.
        self._invocation: Invocation | None = None
        #: Called when the handler of the current run begins; None if it has begun, or without a run.
        self._on_entered: Callable[[], None] | None = None
        #: True after the process was asked to exit: it takes no more runs.
        self.leaving = False
        #: Set when the process has ended.
        self.exited = asyncio.Event()
        self._reports: set[asyncio.Task[None]] = set()
        self._process = SpawnedProcess(run_isolated_process, (spec,), self._on_message, self._on_exit)

    @property
    def alive(self) -> bool:
        return self._process.alive

    @property
    def ready(self) -> bool:
        """True once the process has started, and can run jobs."""
        return self._ready.done()

    async def wait_ready(self) -> None:
        """Wait until the process can run jobs. Raise ConfigurationError if it cannot start."""
        await self._ready

    async def run(self, invocation: Invocation, entered: Callable[[], None]) -> Verdict:
        """Run the job and return its verdict; call `entered` when the process has entered the handler.

        If the process ends, the verdict is Died; before the handler began, NotEntered.
        """
        if not self.alive:
            return NotEntered()
        self._verdict, self._on_entered = self._loop.create_future(), entered
        self._invocation = invocation
        seconds = None if invocation.limits.timeout is None else invocation.limits.timeout / 1000
        self.send(messages.RunJob(invocation.handler.queue, invocation.job, seconds))
        return await self._verdict

    @property
    def pid(self) -> int:
        return self._process.pid

    def leave(self) -> None:
        """Ask a process without a run to leave its lifespan and exit."""
        self.leaving = True
        self.send(messages.ExitIsolated())

    def send(self, message: Struct) -> None:
        self._process.send(messages.encode(message))

    def kill(self) -> None:
        self._process.kill()

    def _on_message(self, raw: bytes) -> None:
        message: messages.FromIsolated = messages.decode_from_isolated(raw)
        match message:
            case messages.ProcessReady() | messages.StartFailed():
                self._on_started(message)
            case messages.RunEntered():
                if self._on_entered is not None:
                    on_entered, self._on_entered = self._on_entered, None
                    on_entered()
            case messages.RunWaits() | messages.RunSpent():
                self._on_run_changed(message)
            case messages.RunFinished(verdict):
                if self._verdict is not None and not self._verdict.done():
                    self._verdict.set_result(verdict)
            case messages.SendReport() as report:
                task = self._loop.create_task(self._relay_report(report))
                self._reports.add(task)
                task.add_done_callback(self._reports.discard)

    def _on_run_changed(self, message: messages.RunWaits | messages.RunSpent) -> None:
        if self._invocation is None or self._invocation.finished:
            return
        if isinstance(message, messages.RunWaits):
            self._invocation.current.waits = message.number
        else:
            self._invocation.current.amount_spent = message.amount

    def _on_started(self, message: messages.ProcessReady | messages.StartFailed) -> None:
        if self._ready.done():  # the wait was cancelled
            return
        if isinstance(message, messages.StartFailed):
            self._ready.set_exception(ConfigurationError(message.reason))
        else:
            self._ready.set_result(None)

    async def _relay_report(self, report: messages.SendReport) -> None:
        try:
            status: str = await self._storage.report(
                report.queue, report.id, report.fence, report.progress, report.memo, output=report.output
            )
        except DibsError:
            status = ""
        self.send(messages.ReportAnswered(report.number, status))

    def _on_exit(self, reason: str) -> None:
        self.exited.set()
        if not self._ready.done():
            self._ready.set_exception(self._start_error(reason))
        if self._verdict is not None and not self._verdict.done():
            self._verdict.set_result(self._verdict_on_exit(reason))

    def _verdict_on_exit(self, reason: str) -> Verdict:
        if self._on_entered is not None:
            return NotEntered()
        return Died(exception_info.make_error("ProcessDied", f"the process that ran it {reason}"))

    def _start_error(self, reason: str) -> ConfigurationError:
        code = self._process.exit_code
        if code == EXIT_NO_MAIN_GUARD:
            return ConfigurationError(MISSING_MAIN_GUARD)
        kind = KilledAtStart if code is not None and code < 0 else ConfigurationError
        return kind(f"the process of a handler {reason} while it was starting")


def _start_timeout_verdict() -> Raised:
    message = (
        f"the handler did not begin within {START_TIMEOUT:g} s, as its process did not start: look for what "
        "the import of the application or @app.lifespan waits for"
    )
    return Raised(error=exception_info.make_error("StartTimeout", message))
