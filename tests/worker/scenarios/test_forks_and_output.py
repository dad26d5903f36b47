"""Handlers that fork without exec, and handlers whose output nobody reads, in real worker processes."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

from dibs import Dibs

APPLICATION = """
import asyncio, contextlib, os, subprocess, sys
from dibs import Dibs

app = Dibs()


@contextlib.contextmanager
def record(job):
    try:
        yield
    finally:
        with open("ends", "a") as file:
            file.write(f"{job.id}\\n")


app.middleware(run=record)


async def code_of(pid):
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])


@app.task(queue="returns")
async def returns():
    if pid := os.fork():
        return await code_of(pid)


@app.task(queue="awaits")
async def awaits():
    if pid := os.fork():
        return await code_of(pid) - 1
    await asyncio.sleep(0)
    raise AssertionError("the forked process went on")


@app.task(queue="exits")
async def exits():
    if pid := os.fork():
        return await code_of(pid) - 7
    sys.exit(7)


@app.task(queue="on_a_thread")
def on_a_thread():
    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@app.task(queue="alone", executor="process")
def alone():
    return on_a_thread.function()


@app.task(queue="prints", max_retries=0)
def prints():
    print("x" * 100_000, flush=True)
    print("y", file=sys.stderr, flush=True)
    return subprocess.run([sys.executable, "-c", "print(1)"], check=True).returncode


@app.task(queue="prints_alone", executor="process", max_retries=0)
def prints_alone():
    return prints.function()
"""


def work(folder: Path, queue: str, processes: int, stream: IO[Any] | int | None) -> str:
    """Run ten jobs by `dibs worker`, check that each returned 0 at its first attempt, and return the log."""
    (folder / "shop.py").write_text(APPLICATION)
    url = f"file:{folder}/jobs"
    asyncio.run(enqueue(url, queue))
    command = [sys.executable, "-m", "dibs", "worker", "shop:app", "--queues", queue, "--until", "empty"]
    done = subprocess.run(
        [*command, "--processes", str(processes), "--url", url],
        cwd=folder, stdout=stream, stderr=stream or subprocess.PIPE, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert [("completed", 1, 0)] * 10 == asyncio.run(read(url, queue))
    return done.stderr


async def enqueue(url: str, queue: str) -> None:
    async with Dibs(url) as app:
        await app.queue(queue).enqueue_many([{"args": [], "kwargs": {}}] * 10)


async def read(url: str, queue: str) -> list[tuple[str, int, Any]]:
    async with Dibs(url) as app:
        found = [status async for status in app.queue(queue).list("completed")]
    return [(status.state, status.attempts, status.result) for status in found]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("queue", ["returns", "awaits", "exits", "on_a_thread", "alone"])
def test_a_forked_process_ends_with_its_handler(tmp_path: Path, queue: str, processes: int) -> None:
    log = work(tmp_path, queue, processes, None)

    assert 10 == len({*(tmp_path / "ends").read_text().splitlines()})
    assert 10 == len((tmp_path / "ends").read_text().splitlines())
    assert (queue not in ("exits", "awaits")) == ("end it with os._exit" in log)


@contextmanager
def pipe_without_reader() -> Iterator[IO[Any]]:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as pipe:
        yield pipe


@pytest.mark.parametrize("queue", ["prints", "prints_alone"])
@pytest.mark.parametrize("processes", [0, 1])
def test_output_that_nobody_reads_fails_no_run(tmp_path: Path, queue: str, processes: int) -> None:
    with pipe_without_reader() as pipe:
        work(tmp_path, queue, processes, pipe)
