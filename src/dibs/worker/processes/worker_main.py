"""Puts a worker together: in this process, or as all that a process of ours does."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, MutableSequence
from contextlib import AsyncExitStack

from msgspec.structs import replace

from dibs.client.app import Dibs
from dibs.worker import messages
from dibs.worker.dispatch.worker import Worker
from dibs.worker.execution.executor import Runner
from dibs.worker.processes.child_main import Line, Spec, enter, leave, resources_of, run_here, why
from dibs.worker.processes.isolated_executor import Alone, encoded
from dibs.worker.processes.logs import style_here
from dibs.worker.processes.spawn import Pipe


async def employ(
    app: Dibs,
    spec: Spec,
    started: MutableSequence[float],
    tell: Callable[[messages.FromWorker], None],
    stack: AsyncExitStack,
    *,
    mortal: bool,
) -> Worker:
    """Return a worker with its resources, which go with the stack; `mortal`: its process may be ended."""
    handlers = [app.handlers[queue] for queue in spec.queues]
    solitary = tuple(handler.queue for handler in handlers if handler.executor == "process")
    can = app.storage.capabilities
    own = replace(spec, queues=solitary, parent=os.getpid(), cross_queue=can.cross_queue, shared=can.shared)
    alone = Alone(app.storage, encoded(replace(own, log=style_here())))
    runner = Runner(started, alone, mortal=mortal)
    stack.callback(runner.close)
    if solitary:
        await alone.prepare()
    resources = await resources_of(app, stack)
    return Worker(app.storage, handlers, runner, tell, resources=resources, poll=spec.poll)


def work_here(pipe: Pipe, started: MutableSequence[float], encoded_spec: bytes) -> None:
    """Be a worker process until told to stop."""
    line, spec, app = enter(pipe, encoded_spec)
    run_here(_work(line, spec, app, started))
    leave()


async def _work(line: Line, spec: Spec, app: Dibs, started: MutableSequence[float]) -> None:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(app)
            worker = await employ(app, spec, started, line.tell, stack, mortal=True)
        except BaseException as error:  # noqa: BLE001 - among others the user's code
            line.tell(messages.StartFailed(why(error)))
            return
        line.listen(asyncio.get_running_loop(), lambda raw: worker.receive(messages.decode_to_worker(raw)))
        line.tell(messages.ProcessReady(os.getpid()))
        await worker.over
