"""Supervisors in the process of a test, or in a program started for the test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process, create_subprocess_exec
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from dibs.app import Dibs
from dibs.worker import WorkReport, run
from tests.source import PROJECT

#: The storages that processes can share; `new_url` returns their URLs.
SHARED = ("file", "redis", "postgresql")

#: A mark for tests that run on each of these storages, also in the short form of the suite.
on_all_storages = pytest.mark.parametrize("shared_url", SHARED, indirect=True)

#: Seconds until a wait fails; long enough for a busy machine.
TIMEOUT = 60.0


class ProgressRecorder:
    """A `progress` callback that keeps the last report and lets a test wait for one."""

    def __init__(self) -> None:
        self.report = WorkReport()
        self._updated = asyncio.Event()

    def __call__(self, report: WorkReport) -> None:
        self.report = report
        self._updated.set()

    async def until(self, condition: Callable[[WorkReport], bool]) -> WorkReport:
        async with asyncio.timeout(TIMEOUT):
            while not condition(self.report):
                self._updated.clear()
                await self._updated.wait()
        return self.report


@asynccontextmanager
async def working(
    app: Dibs, *queues: str, number: int = 1, **options: Any
) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """Run a supervisor in this process, and cancel it at the end of the block."""
    options = {"until": "empty", **options}
    task = asyncio.create_task(run(app, queues=queues, processes=number, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


PROGRAM = """
import asyncio, logging
from tests.worker.apps import app
from dibs.worker import run

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    report = asyncio.run(run(app, **{options!r}))
    print(report.total("completed"), report.total("released"))
"""


@asynccontextmanager
async def program(folder: Path, *queues: str, processes: int = 2, **options: Any) -> AsyncIterator[Process]:
    """Run a supervisor in a new program, and kill it at the end of the block."""
    options = {"queues": queues, "processes": processes, **options}
    async with script(folder, PROGRAM.format(options=options)) as started:
        yield started


@asynccontextmanager
async def script(folder: Path, text: str) -> AsyncIterator[Process]:
    """Run a Python script in a new interpreter, and kill it at the end of the block."""
    path = folder / "program.py"
    path.write_text(text)
    process = await create_subprocess_exec(
        sys.executable, str(path), env={**os.environ, "PYTHONPATH": str(PROJECT)}, stdout=PIPE, stderr=PIPE
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_for_log(process: Process, text: str) -> str:
    """Wait until a program has written a line with `text` to standard error, and return the line."""
    assert process.stderr is not None
    async with asyncio.timeout(TIMEOUT):
        while text.encode() not in (line := await process.stderr.readline()):
            assert line, f"the program ended without the line {text!r}"
    return line.decode()


class ProcessTree:
    """All processes of a program; a test stops and resumes them like one machine."""

    def __init__(self, supervisor: int) -> None:
        self.supervisor = supervisor

    def _pids(self) -> list[int]:
        children = psutil.Process(self.supervisor).children(recursive=True)
        return [child.pid for child in children] + [self.supervisor]

    def stop(self) -> None:
        for pid in reversed(self._pids()):
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Continue the supervisor last, so that its processes can act before it kills them."""
        for pid in self._pids():
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
