"""A worker that is started anew whenever its source changes: for development."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dibs.cli.output import Code, warn

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Seconds without a change until it is taken for the last of an edit: editors write in several steps.
SETTLE: Final = 0.1
#: Seconds that what runs has to end when the source changes; then it is released.
FAREWELL: Final = 2.0
CHANGES: Final = {"modified", "created", "deleted", "moved"}


async def reloading(words: Sequence[str], folder: Path) -> Code:
    """Run `dibs WORDS` in a process, and again after each change of a .py file; return its last code."""
    loop = asyncio.get_running_loop()
    changed, stopped = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    with watching(folder, lambda: loop.call_soon_threadsafe(changed.set)):
        while True:
            # In a group of its own: a Ctrl-C must not reach it twice, from the terminal and from here.
            worker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "dibs", *words, process_group=0
            )
            await _first(worker.wait(), changed.wait(), stopped.wait())
            if stopped.is_set():
                return await _ended(worker, stopped)
            if not changed.is_set():
                warn("the worker ended; it starts again when the source changes")
                await _first(changed.wait(), stopped.wait())
                if stopped.is_set():
                    return Code(worker.returncode or 0)
            await _settled(changed)
            warn("the source changed: starting again")
            await _replaced(worker)


async def _first(*events: Awaitable[Any]) -> None:
    tasks = [asyncio.ensure_future(event) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _settled(changed: asyncio.Event) -> None:
    while changed.is_set():
        changed.clear()
        await asyncio.sleep(SETTLE)


async def _ended(worker: Process, stopped: asyncio.Event) -> Code:
    """Pass each signal on: the first lets the worker wait for its grace, the second does not."""
    while worker.returncode is None:
        if stopped.is_set():
            stopped.clear()
            worker.terminate()
        await _first(worker.wait(), stopped.wait())
    return Code.DONE if worker.returncode == 0 else Code.REFUSED


async def _replaced(worker: Process) -> None:
    with suppress(ProcessLookupError):
        worker.terminate()
        try:
            async with asyncio.timeout(FAREWELL):
                await worker.wait()
        except TimeoutError:
            worker.terminate()
            await worker.wait()


@contextmanager
def watching(folder: Path, told: Callable[[], object]) -> Iterator[None]:
    """Call `told`, from another thread, whenever Python source below a folder changes."""
    from watchdog.events import FileSystemEvent, FileSystemEventHandler  # noqa: PLC0415 - only for --reload
    from watchdog.observers import Observer  # noqa: PLC0415

    class Source(FileSystemEventHandler):
        def on_any_event(self, event: FileSystemEvent) -> None:
            # To read a file is an event, too; and editors write aside, then rename.
            paths = (os.fsdecode(event.src_path), os.fsdecode(event.dest_path))
            if event.event_type in CHANGES and any(path.endswith(".py") for path in paths):
                told()

    observer = Observer()
    observer.schedule(Source(), os.fspath(folder), recursive=True)
    observer.start()
    try:
        yield
    finally:
        observer.stop()
        observer.join()
