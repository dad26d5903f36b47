"""How a process of ours begins and ends, and the pipe to its parent, seen from inside."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, Final

import msgspec
from msgspec import Struct

from dibs.client.app import Dibs
from dibs.errors import DibsError
from dibs.worker import messages
from dibs.worker.processes import signals
from dibs.worker.processes.app_import import check_handlers, find
from dibs.worker.processes.logs import LogStyle, adopt
from dibs.worker.processes.spawn import Pipe

PR_SET_PDEATHSIG: Final = 1


class Spec(Struct, frozen=True, kw_only=True):
    """What a process of ours is to be."""

    #: The application, as "module:name".
    app: str
    queues: tuple[str, ...]
    #: The process that made it, with which it ends.
    parent: int
    poll: float = 1.0
    #: Whether follow-ups may go to other queues.
    cross_queue: bool = True
    #: Whether this process can open the storage by itself.
    shared: bool = True
    #: How the parent writes its log, for a child whose application says nothing of that.
    log: LogStyle = LogStyle()


class Line:
    """The pipe to the parent. A thread listens on it, also while a handler blocks the loop."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()

    def tell(self, message: Struct) -> None:
        with self._lock:
            self._pipe.send_bytes(messages.encode(message))

    def listen(self, loop: asyncio.AbstractEventLoop, heard: Callable[[bytes], None]) -> None:
        """Hear what the parent says, on the loop."""
        threading.Thread(target=self._listen, args=(loop, heard), name="dibs-line", daemon=True).start()

    def _listen(self, loop: asyncio.AbstractEventLoop, heard: Callable[[bytes], None]) -> None:
        try:
            while True:
                loop.call_soon_threadsafe(heard, self._pipe.recv_bytes())
        except (EOFError, OSError):
            # The parent is gone, and with it the lease: nothing that is still running may be settled.
            os._exit(1)
        except RuntimeError:  # the loop is closed: this process is on its way out
            return


def lead_a_group() -> None:
    """Let what handlers start here be ended with this process."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def die_with(parent: int) -> None:
    """End at once with the parent: by the kernel where it can, since a handler may hold the GIL."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def enter(pipe: Pipe, encoded: bytes) -> tuple[Line, Spec, Dibs]:
    """Begin a process of ours: tied to its parent, deaf to signals, with its application at hand."""
    spec = msgspec.msgpack.decode(encoded, type=Spec)
    lead_a_group()
    die_with(spec.parent)
    signals.leave_to_the_parent()
    line = Line(pipe)
    try:
        app = find(spec.app)
        check_handlers(app, spec.app, spec.queues)
    except BaseException as error:  # noqa: BLE001 - importing runs the user's code
        line.tell(messages.StartFailed(why(error)))
        sys.exit(0)
    adopt(spec.log)
    return line, spec, app


def why(error: BaseException) -> str:
    """Return in one line what keeps a process from starting, and where it was raised."""
    if isinstance(error, DibsError):
        return str(error)
    said = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
    frames = traceback.extract_tb(error.__traceback__)
    return f"{said} ({frames[-1].filename}:{frames[-1].lineno})" if frames else said


async def resources_of(app: Dibs, stack: AsyncExitStack) -> Any:
    """Enter the application's lifespan, once in this process, and return what it yields."""
    if app.lifespan_function is None:
        return None
    return await stack.enter_async_context(app.lifespan_function())


def run_here(work: Coroutine[Any, Any, None]) -> None:
    """Be an event loop for this work: uvloop's where it is installed, which takes up to a third less CPU.

    Only in processes that are ours alone: which loop an application runs on is for the application to say.
    """
    with asyncio.Runner(loop_factory=quick_loop()) as runner:
        runner.run(work)


def quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes uvloop's loops, None where it is not installed."""
    try:
        from uvloop import new_event_loop  # noqa: PLC0415 - an extra
    except ImportError:
        return None
    return new_event_loop


def leave() -> None:
    """End this process, whatever its threads do: the interpreter's own exit would wait for handlers."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
