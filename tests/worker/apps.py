"""Applications that worker processes of a test import by name."""

from __future__ import annotations

import asyncio
import ctypes
import logging
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

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.client.calls.handler import Ending
from dibs.errors import LeaseLost, PermanentError, Snooze
from dibs.model.retry import Fixed
from dibs.worker.execution import executor
from dibs.worker.processes import isolated_executor
from tests.worker.jobs import add

#: The application on the storage that a test names in DIBS_URL.
app = Dibs()


def spends() -> None:
    current_job().spent(0)


#: The name at the gate of a program that a handler started.
CHILD_PROGRAM = "child"

if "CANCEL_GRACE" in os.environ:
    isolated_executor.CANCEL_GRACE = float(os.environ["CANCEL_GRACE"])  # type: ignore[misc]
if "CANCEL_SECONDS" in os.environ:
    executor.CANCEL_SECONDS = float(os.environ["CANCEL_SECONDS"])  # type: ignore[misc]


def wait_at_gate(name: str) -> None:
    """Connect to the gate under a name, and wait until the test releases the handler."""
    with _announced(name, os.getpid()) as connection:
        connection.recv(3)


def _announced(name: str, pid: int) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["GATE"])
    connection.sendall(f"{name} {pid}\n".encode())
    return connection


def held() -> int:
    wait_at_gate(current_job().id)
    return os.getpid()


async def held_async() -> int:
    await asyncio.to_thread(wait_at_gate, current_job().id)
    return os.getpid()


def echo(*values: Any) -> Any:
    return values


def surroundings(name: str) -> list[str | None]:
    return [os.environ.get(name), str(Path.cwd()), sys.path[0]]


def suicide() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def holds_the_gil(microseconds: int = 30_000_000) -> None:
    """Sleep in C with the GIL held, after the gate has released the handler."""
    library = ctypes.PyDLL(None)
    wait_at_gate(current_job().id)
    library.usleep(microseconds)


def backtracks() -> None:
    """Hold the GIL with a regular expression that backtracks for ever."""
    wait_at_gate(current_job().id)
    re.match(r"(a+)+$", "a" * 60 + "b")


def parent() -> None:
    """Start a program, announce it at the gate, and wait there."""
    child = subprocess.Popen(["sleep", "3600"])
    _announced(CHILD_PROGRAM, child.pid).close()
    wait_at_gate(current_job().id)


async def deaf() -> None:
    """Ignore cancellation."""
    _announced(current_job().id, os.getpid()).close()
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


def poison(how: str) -> None:
    """Kill the process, or fill its memory."""
    match how:
        case "exit":
            os._exit(7)
        case "segfault":
            ctypes.string_at(0)
        case "recursion":
            sys.setrecursionlimit(1_000_000_000)
            # repr() recurses in C, so the C stack overflows.
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


def poisonous_hook(_: Ending) -> None:
    os._exit(7)


def survey(*_: Any) -> None:
    """A failure handler."""


def fails() -> None:
    raise PermanentError("no")


def survey_held() -> None:
    """A failure handler that waits at the gate."""
    wait_at_gate("survey")


def survey_fails() -> None:
    raise PermanentError("not even this")


async def enqueues() -> None:
    """Enqueue a job directly, not with current_job().then(...)."""
    await isolated_app.queue("echo").enqueue({})


def minds_cancel() -> None:
    """Stop when the job is cancelled."""
    wait_at_gate(current_job().id)
    while not current_job().cancelled:
        time.sleep(0.01)
    raise InterruptedError("as asked")


def slow_to_cancel() -> None:
    """Notice the cancellation, and continue."""
    wait_at_gate(current_job().id)
    while not current_job().cancelled:
        time.sleep(0.01)
    wait_at_gate("cancelled")


def naps(most: float) -> None:
    time.sleep(random.uniform(0, most))


async def naps_async(most: float) -> None:
    await asyncio.sleep(random.uniform(0, most))


def overruns() -> None:
    wait_at_gate(current_job().id)
    time.sleep(3600)


async def loop_class() -> str:
    return type(asyncio.get_running_loop()).__module__


def alarmed() -> list[Any]:
    """Return the signals that this run found; then interrupt a wait by an alarm, and leave another one."""
    found = [signal.getsignal(signal.SIGALRM) == signal.SIG_DFL, signal.getitimer(signal.ITIMER_REAL)[0]]
    signal.signal(signal.SIGALRM, raise_timeout)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with suppress(TimeoutError):
        time.sleep(3600)
    signal.alarm(1)
    return [*found, os.getpid()]


def raise_timeout(*_: object) -> None:
    raise TimeoutError


def resources() -> Any:
    return current_job().resources


async def waits_for_cancel() -> str:
    await asyncio.to_thread(wait_at_gate, current_job().id)
    await asyncio.Event().wait()
    return "never"


def rejects() -> None:
    raise ValueError("no")


def snoozes() -> None:
    raise Snooze(delay=3600)


async def steps() -> list[Any]:
    """Run three steps at the same time; in the first run, die after them."""
    job = current_job()
    results = await asyncio.gather(*(job.step(f"step {n}", os.getpid) for n in range(3)))
    if not job.stalls:
        os.kill(os.getpid(), signal.SIGKILL)
    return [*results, os.getpid(), job.step_key("step 0")]


def steps_blocking() -> list[Any]:
    job = current_job()
    results = [job.step(f"step {n}", os.getpid) for n in range(3)]
    if not job.stalls:
        os.kill(os.getpid(), signal.SIGKILL)
    return [*results, os.getpid(), job.step_key("step 0")]


def append_line(name: str, line: str) -> int:
    """Append a line to a file in the folder $STEPS, and return the number of lines before it."""
    path = Path(os.environ["STEPS"]) / name
    lines = path.read_text().count("\n") if path.exists() else 0
    with path.open("a") as file:
        file.write(f"{line}\n")
    return lines


def writes() -> None:
    for value in ("first", "last"):
        current_job().write(value)


def logs() -> None:
    for value in ("first", "last"):
        logging.getLogger("orders").warning("%s", value)


async def charges() -> list[str]:
    """Run three steps, and die at one point of each run: run number n at point number n.

    There are three points for each step: before it, after its effect, and after its result was stored.
    """
    job = current_job()
    points, last = iter(range(9)), append_line("runs", str(job.fence))

    def die_at_last_point() -> None:
        if next(points) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def charge(name: str) -> str:
        append_line("effects", f"{name} {job.step_key(name)}")
        if last % 3 == 1 and last // 3 == int(name):
            os.kill(os.getpid(), signal.SIGKILL)
        return f"receipt {name}"

    receipts = []
    for name in ("0", "1", "2"):
        die_at_last_point()
        next(points)
        receipts.append(await job.step(name, charge, name))
        die_at_last_point()
    return receipts


def charges_held() -> None:
    """Store a step, wait at the gate, and try to store another one."""
    job = current_job()
    job.step("first", os.getpid)
    wait_at_gate(job.id)
    try:
        job.step("second", os.getpid)
    except LeaseLost:
        append_line("refused", job.id)
        raise


def hands_off() -> str:
    return f"ignored {current_job().hand_off()}"


@asynccontextmanager
async def lifespan() -> AsyncIterator[list[int]]:
    yield [os.getpid()]


def add_handlers(target: Dibs, **options: Any) -> None:
    """Add all handlers above to an application."""
    add(target, "held", held, **options)
    add(target, "held_async", held_async, **options)
    add(target, "echo", echo, **options)
    add(target, "spends", spends, **options)
    add(target, "surroundings", surroundings, **options)
    add(target, "suicide", suicide, max_stalls=1, **options)
    add(target, "gil", holds_the_gil, backoff=Fixed(3600), **options)
    add(target, "backtracking", backtracks, **options)
    add(target, "parent", parent, **options)
    add(target, "deaf", deaf, **options)
    add(target, "slow_to_cancel", slow_to_cancel, **options)
    add(target, "overruns", overruns, timeout=100, backoff=Fixed(3600), **options)
    add(target, "resources", resources, **options)
    add(target, "alarmed", alarmed, size=100, **options)
    add(target, "loop_class", loop_class, **options)
    add(target, "waits_for_cancel", waits_for_cancel, **options)
    add(target, "rejects", rejects, no_retry_on=ValueError, **options)
    add(target, "snoozes", snoozes, **options)
    add(target, "steps", steps, **options)
    add(target, "steps_blocking", steps_blocking, **options)
    add(target, "hands_off", hands_off, **options)
    target.lifespan_function = lifespan


add_handlers(app)
for each in (naps, naps_async):
    add(app, each.__name__, each, max_stalls=None, size=4)
add(app, "poison", poison, backoff=Fixed(3_600_000))
add(app, "poison!fail", survey)
add(app, "poisonous_hook", echo, after=poisonous_hook, max_stalls=1)
for queue, fail_handler in (("frail", survey_held), ("hopeless", survey_fails)):
    add(app, queue, fails)
    add(app, f"{queue}!fail", fail_handler)
add(app, "alone", held, executor="process")
add(app, "minds_cancel", minds_cancel)
add(app, "minds_cancel_alone", minds_cancel, executor="process")
add(app, "parent_alone", parent, executor="process")
add(app, "charges", charges, max_stalls=None)
add(app, "charges_alone", charges, max_stalls=None, executor="process")
add(app, "charges_held", charges_held)

#: An application whose handlers all run in isolated processes, on a storage in memory.
isolated_app = Dibs("memory:solitary")
add_handlers(isolated_app, executor="process")
add(isolated_app, "enqueues", enqueues, executor="process", max_retries=0)
add(isolated_app, "writes", writes, executor="process", max_retries=0)
add(isolated_app, "logs", logs, executor="process", max_retries=0, log_level=logging.WARNING)

#: An application whose lifespan raises.
broken_app = Dibs()
add(broken_app, "echo", echo)


@asynccontextmanager
async def failing_lifespan() -> AsyncIterator[int]:
    yield int("no number")


broken_app.lifespan_function = failing_lifespan


#: An app without a URL, for tests that set its storage with `using`.
app_without_url = Dibs()


@app_without_url.task(queue="isolated", executor="process")
def double(number: int) -> int:
    return 2 * number
