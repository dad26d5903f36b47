"""`dibs worker --reload`: run a worker in a child process, and restart it when the source changes."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dibs.cli.output import ExitCode, print_warning
from dibs.cli.worker_display import PARENT_GROUP_VARIABLE
from dibs.client.sync.stop_signals import STOP_SIGNALS

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Time without a further change before a restart, s. Editors write a file in several steps.
SETTLE_TIME: Final = 0.1
#: Time that running jobs have to end before a restart, s. After it the worker releases them.
RESTART_GRACE: Final = 2.0
#: Kinds of watchdog events that count as a change; reading a file is an event, too.
CHANGE_EVENTS: Final = {"modified", "created", "deleted", "moved"}


async def run_with_reload(args: Sequence[str], folder: Path) -> ExitCode:
    """Run `dibs ARGS` in a child process, and restart it after each change of a .py file in the folder.

    Return the exit code of the last child after SIGTERM or Ctrl-C.
    """
    loop = asyncio.get_running_loop()
    environment = {**os.environ, PARENT_GROUP_VARIABLE: str(os.getpgrp())}
    changed, stopped = asyncio.Event(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stopped.set)
    with watch_source(folder, lambda: loop.call_soon_threadsafe(changed.set)):
        while True:
            # The worker gets its own process group. So Ctrl-C reaches the worker once, through the SIGTERM of
            # `_forward_signals`, and not from the terminal as well.
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dibs", *args, process_group=0, env=environment
            )
            await _wait_for_any(worker.wait(), changed.wait(), stopped.wait())
            if stopped.is_set():
                return await _forward_signals(worker, stopped)
            if not changed.is_set():
                print_warning("the worker ended; it will start again when the source changes")
                await _wait_for_any(changed.wait(), stopped.wait())
                if stopped.is_set():
                    return ExitCode(worker.returncode or 0)
            await _wait_until_settled(changed)
            print_warning("the source changed: restarting the worker")
            await _stop_worker(worker)


async def _wait_for_any(*events: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _wait_until_settled(changed: asyncio.Event) -> None:
    while changed.is_set():
        changed.clear()
        await asyncio.sleep(SETTLE_TIME)


async def _forward_signals(worker: Process, stopped: asyncio.Event) -> ExitCode:
    """Send SIGTERM to the worker for each signal that this process gets, until the worker ends.

    The worker releases its jobs at once when it gets the second SIGTERM.
    """
    while worker.returncode is None:
        if stopped.is_set():
            stopped.clear()
            worker.terminate()
        await _wait_for_any(worker.wait(), stopped.wait())
    return ExitCode.DONE if worker.returncode == 0 else ExitCode.REFUSED


async def _stop_worker(worker: Process) -> None:
    with suppress(ProcessLookupError):
        worker.terminate()
        try:
            async with asyncio.timeout(RESTART_GRACE):
                await worker.wait()
        except TimeoutError:
            worker.terminate()
            await worker.wait()


@contextmanager
def watch_source(folder: Path, on_change: Callable[[], object]) -> Iterator[None]:
    """During a `with` block, call `on_change` on another thread when a .py file below a folder changes."""
    from watchdog.events import FileSystemEvent, FileSystemEventHandler  # noqa: PLC0415 - only for --reload
    from watchdog.observers import Observer  # noqa: PLC0415

    class SourceHandler(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            # Many editors write a temporary file and rename it, so look at both paths of an event.
            paths = (os.fsdecode(event.src_path), os.fsdecode(event.dest_path))
            if event.event_type in CHANGE_EVENTS and any(path.endswith(".py") for path in paths):
                on_change()

    observer = Observer()
    observer.schedule(SourceHandler(), os.fspath(folder), recursive=True)
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.join()
