"""A supervisor in the process of a test, or in a program of its own, and what a test asks of it."""

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

from dibs.client.app import Dibs
from dibs.worker import WorkReport, run
from tests.source import PROJECT

#: Storages that processes share; a new one is one more word here and its URL in conftest.
SHARED = ("file", "redis", "postgres")

#: For a test whose short form, too, runs on each of them.
everywhere = pytest.mark.parametrize("shared_url", SHARED, indirect=True)

#: Long enough for a machine that has much else to do.
PATIENCE = 60.0


class Watched:
    """What a supervisor reports on the way."""

    def __init__(self) -> None:
        self.report = WorkReport()
        self._told = asyncio.Event()

    def __call__(self, report: WorkReport) -> None:
        self.report = report
        self._told.set()

    async def until(self, condition: Callable[[WorkReport], bool]) -> WorkReport:
        async with asyncio.timeout(PATIENCE):
            while not condition(self.report):
                self._told.clear()
                await self._told.wait()
        return self.report


@asynccontextmanager
async def working(
    app: Dibs, *queues: str, number: int = 1, **options: Any
) -> AsyncIterator[asyncio.Task[WorkReport]]:
    """A supervisor in this process, ended at the end at the latest."""
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
    """A supervisor in a program of its own, killed at the end at the latest."""
    options = {"queues": queues, "processes": processes, **options}
    async with script(folder, PROGRAM.format(options=options)) as started:
        yield started


@asynccontextmanager
async def script(folder: Path, text: str) -> AsyncIterator[Process]:
    """A program of its own."""
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


async def said(process: Process, words: str) -> str:
    """Wait until a program has said something in its log, and return the line."""
    assert process.stderr is not None
    async with asyncio.timeout(PATIENCE):
        while words.encode() not in (line := await process.stderr.readline()):
            assert line, f"it ended without saying {words!r}"
    return line.decode()


class Fleet:
    """All processes of a program, to be stopped and continued like one machine."""

    def __init__(self, supervisor: int) -> None:
        self.supervisor = supervisor

    def _pids(self) -> list[int]:
        children = psutil.Process(self.supervisor).children(recursive=True)
        return [child.pid for child in children] + [self.supervisor]

    def stop(self) -> None:
        for pid in reversed(self._pids()):
            _send(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        """The supervisor last: its processes have every chance to act before they are ended."""
        for pid in self._pids():
            _send(pid, signal.SIGCONT)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
