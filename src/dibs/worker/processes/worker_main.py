"""The construction of a worker, and the main function of a worker process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, MutableSequence
from contextlib import AsyncExitStack, ExitStack
from multiprocessing.connection import Connection

from msgspec.structs import replace

from dibs.client.app import Dibs
from dibs.worker import messages
from dibs.worker.dispatch.worker import Worker
from dibs.worker.processes.child_main import (
    ParentPipe,
    ProcessSpec,
    describe_error,
    encode_spec,
    enter_lifespan,
    exit_process,
    run_event_loop,
    set_up_process,
)
from dibs.worker.processes.isolated_executor import IsolatedExecutor
from dibs.worker.processes.logs import current_log_config


async def build_worker(
    app: Dibs,
    spec: ProcessSpec,
    started: MutableSequence[float],
    send: Callable[[messages.FromWorker], None],
    stack: AsyncExitStack,
    *,
    killable: bool,
) -> Worker:
    """Return a worker for the queues of `spec`; the stack closes its executor and its lifespan.

    `send` is called with each message for the supervisor. `killable` is True if the supervisor can kill the
    process of the worker.
    """
    handlers = [app.handlers[queue] for queue in spec.queues]
    isolated_spec = _isolated_spec(app, spec)
    isolated = IsolatedExecutor(app.storage, encode_spec(isolated_spec))
    stack.callback(isolated.close)
    # The worker is created within the lifespan and closed after it. Until then it checks the deadlines of
    # runs that do not stop.
    closing = stack.enter_context(ExitStack())
    if isolated_spec.queues:
        await isolated.prepare()
    resources = await enter_lifespan(app, stack)
    worker = Worker(
        app.storage,
        handlers,
        started,
        isolated,
        send,
        killable=killable,
        resources=resources,
        poll=spec.poll,
    )
    closing.callback(worker.close)
    return worker


def _isolated_spec(app: Dibs, spec: ProcessSpec) -> ProcessSpec:
    """Return the spec of the isolated processes, which serve the queues with executor="process"."""
    capabilities = app.storage.capabilities
    return replace(
        spec,
        queues=tuple(queue for queue in spec.queues if app.handlers[queue].executor == "process"),
        parent=os.getpid(),
        cross_queue=capabilities.cross_queue,
        shared=capabilities.shared,
        log=current_log_config(),
    )


def run_worker_process(pipe: Connection, started: MutableSequence[float], encoded_spec: bytes) -> None:
    """Run a worker in this child process until the supervisor stops it, then exit."""
    parent, spec, app = set_up_process(pipe, encoded_spec)
    run_event_loop(_run_worker(parent, spec, app, started))
    exit_process()


async def _run_worker(
    parent: ParentPipe, spec: ProcessSpec, app: Dibs, started: MutableSequence[float]
) -> None:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(app)
            worker = await build_worker(app, spec, started, parent.send, stack, killable=True)
        except BaseException as error:  # noqa: BLE001 - the lifespan is the user's code
            parent.send(messages.StartFailed(describe_error(error)))
            return
        parent.start_reading(
            asyncio.get_running_loop(), lambda raw: worker.receive(messages.decode_to_worker(raw))
        )
        parent.send(messages.ProcessReady(os.getpid()))
        await worker.ended
