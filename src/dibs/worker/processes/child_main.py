"""The parts that all child processes share: their start, event loop, exit, and pipe to the parent."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn

import msgspec
from msgspec import Struct

from dibs.app import Dibs
from dibs.worker import messages
from dibs.worker.execution.process_limits import NO_LIMITS, ProcessLimits
from dibs.worker.processes import signals
from dibs.worker.processes.app_import import check_handlers, describe_error, import_app
from dibs.worker.processes.logs import (
    LogConfig,
    accept_lost_output,
    apply_log_config,
    repeated_warnings_once_a_minute,
)
from dibs.worker.processes.multiprocessing_privates import run_exit_functions

#: The prctl() option that names the signal which the kernel sends this process when its parent ends.
PR_SET_PDEATHSIG: Final = 1
#: Seconds that tasks of the application may take to end after they were cancelled at the exit of the process.
CANCEL_TIMEOUT: Final = 1.0

logger = logging.getLogger("dibs.worker")


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """The settings of a child process, sent to it as MessagePack."""

    #: The application, as "module:name".
    app: str
    queues: tuple[str, ...]
    #: The process id of the parent; the child ends when the parent ends.
    parent: int
    #: Seconds between two checks of a queue for jobs, for storages that do not push wake-ups.
    poll: float = 1.0
    limits: ProcessLimits = NO_LIMITS
    #: True if follow-ups (the jobs that a run enqueues when it is settled) may go to other queues.
    cross_queue: bool = True
    #: True if the storage keeps the output of runs.
    output: bool = False
    #: The folder of a relative file: URL, as in the parent; "" keeps that of this process.
    folder: str = ""
    #: True if a child process can open the storage.
    shared: bool = True
    #: The log configuration of the parent, used if the application configures no logging.
    log: LogConfig = LogConfig()


def encode_spec(spec: ProcessSpec) -> bytes:
    """Return a spec as MessagePack; `set_up_process` decodes it."""
    return msgspec.msgpack.encode(spec)


class ParentPipe:
    """The pipe to the parent. A thread reads it, so the exit of the parent is noticed at once.

    The event loop could not notice it while a handler blocks the loop.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def send(self, message: Struct) -> None:
        with self._lock:
            self._pipe.send_bytes(messages.encode(message))

    def start_reading(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[bytes], None]) -> None:
        """Call `on_message` on the loop with each message of the parent, from now on."""
        threading.Thread(
            target=self._read_messages, args=(loop, on_message), name="dibs-pipe", daemon=True
        ).start()

    def _read_messages(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[bytes], None]) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(on_message, self._pipe.recv_bytes())
        except (EOFError, OSError):
            # The parent has exited, so its lease will expire and other workers will run its jobs. This
            # process must not settle its runs any more.
            os._exit(1)
        except RuntimeError:  # the loop is closed: this process is about to exit
            return


def start_process_group() -> None:
    """Make this process lead a new process group, so that programs its handlers start are killed with it."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def exit_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends; exit now if the parent has ended already.

    Only Linux offers this signal. A thread that watches the parent is no substitute: a handler may hold the
    GIL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def set_up_process(pipe: Connection, encoded_spec: bytes) -> tuple[ParentPipe, ProcessSpec, Dibs]:
    """Tie this process to its parent, import the application and configure logging.

    If the application cannot be imported, send StartFailed to the parent and exit.
    """
    spec = msgspec.msgpack.decode(encoded_spec, type=ProcessSpec)
    start_process_group()
    exit_with_parent(spec.parent)
    signals.leave_signals_to_parent()
    accept_lost_output()
    parent = ParentPipe(pipe)
    try:
        app = import_app(spec.app)
        if spec.folder:
            app._storage_handle.folder = spec.folder  # noqa: SLF001 - the worker is a part of dibs
        check_handlers(app, spec.app, spec.queues)
    except BaseException as error:  # noqa: BLE001 - importing runs the user's code
        parent.send(messages.StartFailed(describe_error(error)))
        sys.exit(0)
    apply_log_config(spec.log)
    return parent, spec, app


async def enter_lifespan(app: Dibs, stack: AsyncExitStack) -> Any:
    """Enter the application's lifespan on the stack and return its resources; None without a lifespan."""
    if app.lifespan_function is None:
        return None
    return await stack.enter_async_context(app.lifespan_function())


def run_and_exit(work: Coroutine[Any, Any, None]) -> NoReturn:
    """Run a coroutine on a new event loop, then exit with code 0. Raise the error of the coroutine."""
    run_on_new_loop(work)
    exit_process()


def run_on_new_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on a new event loop of this thread, and cancel the tasks that it leaves.

    The loop is uvloop's if it is installed, which takes up to a third less CPU. It is not closed: that would
    wait for tasks that ignore their cancellation, and for threads of handlers.
    """
    runner = asyncio.Runner(loop_factory=uvloop_factory())
    with repeated_warnings_once_a_minute():
        runner.run(run_then_cancel_tasks(work))


async def run_then_cancel_tasks(work: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine, then cancel the tasks that it leaves, and give them CANCEL_TIMEOUT seconds to end."""
    await work
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=CANCEL_TIMEOUT)


def log_lifespan_error(error: BaseException) -> None:
    """Log an error that @app.lifespan raised after its yield. The process ends all the same."""
    logger.error(
        "the part of @app.lifespan after its yield failed: %s", describe_error(error), exc_info=error
    )


def uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, or None if uvloop is not installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return new_event_loop


def exit_process() -> NoReturn:
    """Call the functions registered with `atexit`, then exit with code 0.

    The interpreter's own exit would wait for threads that still run a handler.
    """
    run_exit_functions()
    with suppress(OSError, ValueError, AttributeError):  # a handler may have closed or replaced the streams
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)
