"""Applications that processes of a test import by name."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from dibs.client.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.errors import PermanentError
from dibs.model.retry import Fixed
from dibs.worker.execution import executor
from dibs.worker.processes import isolated_executor as alone
from tests.worker.workshop import add

#: The storage that a test names in DIBS_URL.
app = Dibs()


#: How a handler calls a program it started, at the gate.
CHILD = "child"

if "CANCEL_GRACE" in os.environ:
    alone.CANCEL_GRACE = float(os.environ["CANCEL_GRACE"])  # type: ignore[misc]
if "CANCEL_SECONDS" in os.environ:
    executor.CANCEL_SECONDS = float(os.environ["CANCEL_SECONDS"])  # type: ignore[misc]


def meet(name: str) -> None:
    """Say at the gate that we are here, and wait to be let go."""
    with _announced(name, os.getpid()) as line:
        line.recv(3)


def _announced(name: str, pid: int) -> socket.socket:
    line = socket.socket(socket.AF_UNIX)
    line.connect(os.environ["GATE"])
    line.sendall(f"{name} {pid}\n".encode())
    return line


def held() -> int:
    meet(current_job().id)
    return os.getpid()


async def held_async() -> int:
    await asyncio.to_thread(meet, current_job().id)
    return os.getpid()


def echo(*values: Any) -> Any:
    return values


def surroundings(name: str) -> list[str | None]:
    return [os.environ.get(name), str(Path.cwd()), sys.path[0]]


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def holds_the_gil(microseconds: int = 30_000_000) -> None:
    """Sleep in C without letting go of the interpreter, at once when it is let go on."""
    library = ctypes.PyDLL(None)
    meet(current_job().id)
    library.usleep(microseconds)


def backtracks() -> None:
    """The same by a pattern that takes for ever."""
    meet(current_job().id)
    re.match(r"(a+)+$", "a" * 60 + "b")


def parent() -> None:
    """Start a program, say so, and wait."""
    child = subprocess.Popen(["sleep", "3600"])
    _announced(CHILD, child.pid).close()
    meet(current_job().id)


async def deaf() -> None:
    """Go on when told to stop."""
    _announced(current_job().id, os.getpid()).close()
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def poison(how: str) -> None:
    """Take the process down."""
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "recursion":
            sys.setrecursionlimit(1_000_000_000)
            # By way of C, so that it is the stack that ends.
            deep: Any = None
            for _ in range(300_000):
                deep = [deep]
            repr(deep)
        case "memory":
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000,) * 2)
            fill = [bytes(1_000_000)]
            while True:
                fill.append(bytes(1_000_000))
        case _:
            pass


def survey(*_: Any) -> None:
    """A failure handler."""


def fails() -> None:
    raise PermanentError("no")


def survey_held() -> None:
    """A failure handler that can be found at the gate."""
    meet("survey")


def survey_fails() -> None:
    raise PermanentError("not even this")


async def enqueues() -> None:
    """Enqueue by itself, not by current_job().then(...)."""
    await solitary.queue("echo").enqueue({})


def minds_cancel() -> None:
    """Stop when asked to."""
    meet(current_job().id)
    while not current_job().cancelled:
        time.sleep(0.01)
    raise InterruptedError("as asked")


def slow_to_cancel() -> None:
    """Hear of the request to stop, and go on."""
    meet(current_job().id)
    while not current_job().cancelled:
        time.sleep(0.01)
    meet("cancelled")


def naps(most: float) -> None:
    time.sleep(random.uniform(0, most))


async def naps_async(most: float) -> None:
    await asyncio.sleep(random.uniform(0, most))


def overruns() -> None:
    meet(current_job().id)
    time.sleep(3600)


async def loop_class() -> str:
    return type(asyncio.get_running_loop()).__module__


def resources() -> Any:
    return current_job().resources


async def waits_for_cancel() -> str:
    await asyncio.to_thread(meet, current_job().id)
    await asyncio.Event().wait()
    return "never"


@asynccontextmanager
async def lifespan() -> AsyncIterator[list[int]]:
    yield [os.getpid()]


def furnish(place: Dibs, **options: Any) -> None:
    """Give an application all handlers."""
    add(place, "held", held, **options)
    add(place, "held_async", held_async, **options)
    add(place, "echo", echo, **options)
    add(place, "surroundings", surroundings, **options)
    add(place, "suicide", suicide, max_stalls=1, **options)
    add(place, "gil", holds_the_gil, backoff=Fixed(3600), **options)
    add(place, "backtracking", backtracks, **options)
    add(place, "parent", parent, **options)
    add(place, "deaf", deaf, **options)
    add(place, "slow_to_cancel", slow_to_cancel, **options)
    add(place, "overruns", overruns, timeout=100, backoff=Fixed(3600), **options)
    add(place, "resources", resources, **options)
    add(place, "loop_class", loop_class, **options)
    add(place, "waits_for_cancel", waits_for_cancel, **options)
    place.lifespan_function = lifespan


furnish(app)
for each in (naps, naps_async):
    add(app, each.__name__, each, max_stalls=None, size=4)
add(app, "poison", poison, backoff=Fixed(3_600_000), handles_failure=True)
add(app, "poison!fail", survey)
for queue, fail_handler in (("frail", survey_held), ("hopeless", survey_fails)):
    add(app, queue, fails, handles_failure=True)
    add(app, f"{queue}!fail", fail_handler)
add(app, "alone", held, executor="process")
add(app, "minds_cancel", minds_cancel)
add(app, "minds_cancel_alone", minds_cancel, executor="process")
add(app, "parent_alone", parent, executor="process")

#: Handlers that have a process to themselves, over a storage in memory.
solitary = Dibs("memory:solitary")
furnish(solitary, executor="process")
add(solitary, "enqueues", enqueues, executor="process", max_retries=0)

#: One that cannot start.
broken = Dibs()
add(broken, "echo", echo)


@asynccontextmanager
async def breaks() -> AsyncIterator[int]:
    yield int("no number")


broken.lifespan_function = breaks
