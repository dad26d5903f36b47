"""What runs inside a process that runs one handler at a time."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack, nullcontext
from typing import Any, Final, Self, cast

from dibs.client.app import Dibs
from dibs.client.calls.current_job import CurrentJob
from dibs.errors import NotRunning, StorageUnavailable
from dibs.model.results import ReportStatus
from dibs.model.run_outcome import Verdict
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.execution.invocation import Invocation, call, call_plain
from dibs.worker.processes.child_main import (
    ParentPipe,
    ProcessSpec,
    describe_error,
    enter_lifespan,
    exit_process,
    run_event_loop,
    set_up_process,
)
from dibs.worker.processes.spawn import Pipe

UNREACHABLE_STORAGE: Final = (
    'its jobs live in the worker\'s own process, and this handler runs in another (executor="process"): what '
    "it enqueued here would reach nobody. Use current_job().then(...), or a storage that processes share"
)


class UnreachableStorage:
    """The storage of the worker, which only its own process holds."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.capabilities = Capabilities()

    async def __aenter__(self) -> Self:
        raise NotRunning(UNREACHABLE_STORAGE)


class ProgressRelay:
    """What a job here knows of the storage: its worker passes the progress on."""

    def __init__(self, line: ParentPipe, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._line = line
        self._answers: list[asyncio.Future[str]] = []

    async def report(self, queue: str, id: str, fence: int, progress: bytes) -> ReportStatus:
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        self._line.tell(messages.ReportProgress(queue, id, fence, progress))
        status = await answer
        if not status:
            raise StorageUnavailable("the worker could not report the progress")
        return "lost" if status == "lost" else "reported"

    def answered(self, status: str) -> None:
        """Pass on what the storage said to the oldest report."""
        answer = self._answers.pop(0)
        if not answer.done():
            answer.set_result(status)


def run_isolated_process(pipe: Pipe, encoded: bytes) -> None:
    """Be a process that runs one handler at a time, until the parent ends it."""
    line, spec, app = set_up_process(pipe, encoded)
    with (
        app.override_storage(cast("Storage", UnreachableStorage(app.url)))
        if not spec.shared
        else nullcontext()
    ):
        run_event_loop(_serve(line, spec, app))
    exit_process()


async def _serve(line: ParentPipe, spec: ProcessSpec, app: Dibs) -> None:
    async with AsyncExitStack() as stack:
        try:
            resources = await enter_lifespan(app, stack)
        except BaseException as error:  # noqa: BLE001 - the user's code
            line.tell(messages.StartFailed(describe_error(error)))
            return
        solo = IsolatedRunner(line, spec, app, resources)
        line.listen(asyncio.get_running_loop(), solo.hear)
        line.tell(messages.ProcessReady(os.getpid()))
        await asyncio.Event().wait()


class IsolatedRunner:
    """The one run of this process."""

    def __init__(self, line: ParentPipe, spec: ProcessSpec, app: Dibs, resources: Any) -> None:
        self._line = line
        self._app = app
        self._resources = resources
        self._relay = ProgressRelay(line, Capabilities(cross_queue=spec.cross_queue))
        self._loop = asyncio.get_running_loop()
        self._run: Invocation | None = None

    def hear(self, raw: bytes) -> None:
        message: messages.ToIsolated = messages.decode_to_isolated(raw)
        match message:
            case messages.RunJob() as order:
                run = Invocation(self._app.handlers[order.queue], order.job, 0)
                deadline = None if order.seconds is None else time.monotonic() + order.seconds
                run.current = CurrentJob(
                    self._relay, order.queue, order.job, self._loop, deadline, self._resources
                )
                self._run = run
                run.task = self._loop.create_task(self._perform(run))
            case messages.CancelRun():
                if self._run is not None:
                    self._cancel(self._run)
            case messages.ProgressReported(status):
                self._relay.answered(status)

    def _cancel(self, run: Invocation) -> None:
        run.current.request_cancel()
        if run.task is not None and run.handler.is_async:
            run.task.cancel()

    async def _perform(self, run: Invocation) -> None:
        if run.handler.is_async:
            verdict: Verdict = await call(run)
        else:
            # On a thread, for job.progress() in a `def` handler waits for this loop.
            verdict = await asyncio.to_thread(call_plain, run)
        self._run = None
        self._line.tell(messages.RunFinished(verdict))
