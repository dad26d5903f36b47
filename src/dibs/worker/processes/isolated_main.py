"""The main function of an isolated process: a child of a worker that runs one job at a time.

The handler is on the main thread, because only there may code call signal.signal, as libraries with
timeouts do. For `async def` handlers the event loop is on the main thread, and for `def` handlers on
another thread.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, nullcontext
from contextvars import copy_context
from itertools import count
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Final, Self, cast

from attrs import define, field

from dibs.app import Dibs
from dibs.client.calls.current_job import CurrentJob, RunEnvironment
from dibs.errors import NotRunning, StorageUnavailable
from dibs.model.results import ReportStatus
from dibs.model.run_outcome import Verdict
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Storage
from dibs.worker import messages
from dibs.worker.execution.forks import guard_loop
from dibs.worker.execution.invocation import (
    Invocation,
    call_async_handler,
    call_sync_handler,
    interrupted_verdict,
)
from dibs.worker.processes.app_import import describe_error
from dibs.worker.processes.child_main import (
    ParentPipe,
    ProcessSpec,
    enter_lifespan,
    exit_process,
    log_lifespan_error,
    run_and_exit,
    run_on_new_loop,
    set_up_process,
)


@define(eq=False)
class MainThread:
    """The main thread of an isolated process. It waits in `serve` for the calls of the event loop."""

    _calls: SimpleQueue[tuple[Callable[[], Verdict], Future[Verdict]] | None] = field(
        factory=SimpleQueue, init=False
    )

    async def call(self, function: Callable[[], Verdict]) -> Verdict:
        """Call `function`, which must not raise, on the main thread, and return its verdict."""
        result: Future[Verdict] = Future()
        self._calls.put((function, result))
        return await asyncio.wrap_future(result)

    def stop(self) -> None:
        """Let `serve` return after the calls so far."""
        self._calls.put(None)

    def serve(self) -> None:
        """Make the calls, one after the other, until `stop`. To be called on the main thread."""
        while (item := self._calls.get()) is not None:
            function, result = item
            with restored_signals():
                verdict = function()
            result.set_result(verdict)


@contextmanager
def restored_signals() -> Iterator[None]:
    """Cancel the alarm that the block has set, and restore the signal handlers that it has replaced.

    The process is used again: an alarm of one job would go off in the next one.
    """
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        yield
    finally:
        if hasattr(signal, "alarm"):
            signal.alarm(0)
        for number, handler in before.items():
            # None: the handler is not of Python, and cannot be restored.
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)


UNREACHABLE_STORAGE: Final = (
    'the jobs of this storage live in the process of the worker, and a handler with executor="process" runs '
    "in another process: a job that it enqueues here would never run. Use current_job().then(...), or a "
    "storage that processes share"
)


@define(eq=False)
class UnreachableStorage:
    """A replacement for a storage that only the worker's process can open. Opening it raises NotRunning."""

    url: str
    capabilities: Capabilities = field(factory=Capabilities)

    async def __aenter__(self) -> Self:
        raise NotRunning(UNREACHABLE_STORAGE)


class ReportRelay:
    """The storage of a job in this process. `report` sends its values to the worker to store."""

    def __init__(self, parent: ParentPipe, capabilities: Capabilities) -> None:
        self.capabilities = capabilities
        self._parent = parent
        #: The reports without a reply, by their numbers.
        self._pending: dict[int, asyncio.Future[str]] = {}
        self._numbers = count()

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Sequence[bytes] = (),
    ) -> ReportStatus:
        number, reply = next(self._numbers), asyncio.get_running_loop().create_future()
        self._pending[number] = reply
        self._parent.send(messages.SendReport(number, queue, id, fence, progress, memo, tuple(output)))
        status = await reply
        if not status:
            raise StorageUnavailable(
                "the report was not stored, as the storage was unavailable; report it again"
            )
        return "lost" if status == "lost" else "reported"

    def on_reply(self, number: int, status: str) -> None:
        """Resolve a pending report with the status from the storage; "" if the storage failed."""
        reply = self._pending.pop(number)
        if not reply.done():
            reply.set_result(status)


def run_isolated_process(pipe: Connection, encoded_spec: bytes) -> None:
    """Run the jobs that the parent sends, one at a time, until the parent ends this process.

    The queues of the spec have `def` handlers only, or `async def` handlers only.
    """
    parent, spec, app = set_up_process(pipe, encoded_spec)
    with nullcontext() if spec.shared else _without_storage(app):
        if app.handlers[spec.queues[0]].is_async:
            run_and_exit(_serve(parent, spec, app, None))
        main_thread = MainThread()
        threading.Thread(
            target=_serve_on_thread, args=(parent, spec, app, main_thread), name="dibs-loop", daemon=True
        ).start()
        main_thread.serve()
        exit_process()


def _serve_on_thread(parent: ParentPipe, spec: ProcessSpec, app: Dibs, main_thread: MainThread) -> None:
    try:
        run_on_new_loop(_serve(parent, spec, app, main_thread))
    finally:
        main_thread.stop()


def _without_storage(app: Dibs) -> AbstractContextManager[None]:
    """Replace the storage of the app, which only the process of the worker can open.

    The app may have no URL here: the process of the worker may have set its storage with `using`.
    """
    return app.override_storage(cast("Storage", UnreachableStorage("memory:")))


async def _serve(parent: ParentPipe, spec: ProcessSpec, app: Dibs, main_thread: MainThread | None) -> None:
    try:
        await _serve_until_exit(parent, spec, app, main_thread)
    except Exception as error:  # noqa: BLE001 - only the part of the lifespan after its yield can raise here
        log_lifespan_error(error)


async def _serve_until_exit(
    parent: ParentPipe, spec: ProcessSpec, app: Dibs, main_thread: MainThread | None
) -> None:
    async with AsyncExitStack() as stack:
        try:
            resources = await enter_lifespan(app, stack)
        except BaseException as error:  # noqa: BLE001 - the user's code
            parent.send(messages.StartFailed(describe_error(error)))
            return
        runner = IsolatedRunner(parent, spec, app, resources, main_thread)
        parent.start_reading(asyncio.get_running_loop(), runner.on_message)
        parent.send(messages.ProcessReady(os.getpid()))
        await runner.exit_requested.wait()


class IsolatedRunner:
    """The runner of an isolated process. It acts on the messages of the parent and holds at most one run.

    `main_thread` runs the handlers that are no `async def`.
    """

    def __init__(
        self,
        parent: ParentPipe,
        spec: ProcessSpec,
        app: Dibs,
        resources: Any,
        main_thread: MainThread | None,
    ) -> None:
        self._parent = parent
        self._app = app
        self._resources = resources
        self._main_thread = main_thread
        self._relay = ReportRelay(parent, Capabilities(cross_queue=spec.cross_queue, output=spec.output))
        self._loop = asyncio.get_running_loop()
        guard_loop(self._loop)
        #: The context variables that the lifespan has set; each run gets a copy.
        self._context = copy_context()
        self._invocation: Invocation | None = None
        #: Set when the parent has asked this process to exit.
        self.exit_requested = asyncio.Event()

    def on_message(self, raw: bytes) -> None:
        message: messages.ToIsolated = messages.decode_to_isolated(raw)
        match message:
            case messages.RunJob():
                self._start(message)
            case messages.CancelRun():
                if self._invocation is not None:
                    self._cancel(self._invocation)
            case messages.ReportAnswered(number, status):
                self._relay.on_reply(number, status)
            case messages.ExitIsolated():
                self.exit_requested.set()

    def _start(self, message: messages.RunJob) -> None:
        handler = self._app.handlers[message.queue]
        invocation = Invocation(handler, message.job, 0)
        deadline = None if message.seconds is None else time.monotonic() + message.seconds
        environment = RunEnvironment(
            self._relay,
            message.queue,
            self._loop,
            self._resources,
            handler.serde,
            report_waits=lambda number: self._parent.send(messages.RunWaits(number)),
            report_spent=lambda amount: self._parent.send(messages.RunSpent(amount)),
            unit=handler.unit,
            log_level=handler.log_level if self._relay.capabilities.output else None,
        )
        invocation.current = CurrentJob(environment, message.job, deadline)
        self._invocation = invocation
        invocation.task = self._loop.create_task(self._call_handler(invocation), context=self._context.copy())

    def _cancel(self, invocation: Invocation) -> None:
        invocation.stop_reason = "cancel"
        invocation.current.request_cancel()
        if invocation.task is not None and invocation.entered and invocation.handler.is_async:
            invocation.task.cancel()

    async def _call_handler(self, invocation: Invocation) -> None:
        if invocation.stop_reason is None:
            invocation.entered = True
            self._parent.send(messages.RunEntered())
            verdict = await self._verdict_of_handler(invocation)
            if invocation.current.output is not None:
                await invocation.current.output.finish()
        else:
            verdict = interrupted_verdict()
        self._invocation = None
        self._parent.send(messages.RunFinished(verdict))

    async def _verdict_of_handler(self, invocation: Invocation) -> Verdict:
        if self._main_thread is None:
            return await call_async_handler(invocation)
        context = self._context.copy()
        return await self._main_thread.call(lambda: call_sync_handler(invocation, context))
