"""The construction of a worker, and the main function of a worker process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, MutableSequence
from contextlib import AsyncExitStack, ExitStack
from multiprocessing.connection import Connection

from msgspec.structs import replace

from dibs.app import Dibs
from dibs.errors import StorageUnavailable
from dibs.worker import messages
from dibs.worker.dispatch.worker import Worker
from dibs.worker.processes.app_import import describe_error
from dibs.worker.processes.child_main import (
    ParentPipe,
    ProcessSpec,
    encode_spec,
    enter_lifespan,
    log_lifespan_error,
    run_and_exit,
    set_up_process,
)
from dibs.worker.processes.isolated_executor import IsolatedExecutor
from dibs.worker.processes.logs import current_log_config, enable_dibs_loggers


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
    isolated = IsolatedExecutor(app.storage, _isolated_specs(app, spec), spec.limits.max_memory)
    stack.push_async_callback(isolated.close)
    # The worker is created within the lifespan and closed after it. Until then it checks the deadlines of
    # runs that do not stop.
    closing = stack.enter_context(ExitStack())
    await isolated.prepare()
    resources = await enter_lifespan(app, stack)
    # Before the end of this lifespan, so that the processes leave theirs at the same time.
    stack.callback(isolated.ask_to_exit)
    enable_dibs_loggers()  # the application may have called dictConfig, at its import or in its lifespan
    worker = Worker(
        app.storage,
        handlers,
        started,
        isolated,
        send,
        killable=killable,
        resources=resources,
        poll=spec.poll,
        limits=spec.limits,
    )
    closing.callback(worker.close)
    return worker


def _isolated_specs(app: Dibs, spec: ProcessSpec) -> dict[str, bytes]:
    """Return the encoded spec of the isolated processes of each queue with executor="process".

    The queues with `def` handlers have one spec, and those with `async def` handlers another.
    """
    capabilities = app.storage.capabilities
    isolated = [queue for queue in spec.queues if app.handlers[queue].executor == "process"]
    specs: dict[str, bytes] = {}
    for is_async in (False, True):
        queues = tuple(queue for queue in isolated if app.handlers[queue].is_async is is_async)
        encoded = encode_spec(
            replace(
                spec,
                queues=queues,
                parent=os.getpid(),
                cross_queue=capabilities.cross_queue,
                output=capabilities.output,
                shared=capabilities.shared,
                log=current_log_config(),
            )
        )
        specs.update(dict.fromkeys(queues, encoded))
    return specs


def run_worker_process(pipe: Connection, started: MutableSequence[float], encoded_spec: bytes) -> None:
    """Run a worker in this child process until the supervisor stops it, then exit."""
    parent, spec, app = set_up_process(pipe, encoded_spec)
    run_and_exit(run_worker(parent, spec, app, started))


async def run_worker(
    parent: ParentPipe, spec: ProcessSpec, app: Dibs, started: MutableSequence[float]
) -> None:
    """Run the worker of a child process until its supervisor stops it. `parent` is the pipe to it."""
    try:
        await _run_until_ended(parent, spec, app, started)
    except Exception as error:  # noqa: BLE001 - only the part of the lifespan after its yield can raise here
        log_lifespan_error(error)


async def _run_until_ended(
    parent: ParentPipe, spec: ProcessSpec, app: Dibs, started: MutableSequence[float]
) -> None:
    opened = False
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(app)
            opened = True
            worker = await build_worker(app, spec, started, parent.send, stack, killable=True)
        except BaseException as error:  # noqa: BLE001 - the lifespan is the user's code
            passing = not opened and isinstance(error, StorageUnavailable)
            parent.send(messages.StartFailed(describe_error(error), passing))
            return
        parent.start_reading(
            asyncio.get_running_loop(), lambda raw: worker.receive(messages.decode_to_worker(raw))
        )
        parent.send(messages.ProcessReady(os.getpid()))
        await worker.ended
