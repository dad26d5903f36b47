"""Worker processes that reach a limit: they end their runs, others replace them, and no job notices it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.errors import ConfigurationError
from dibs.worker import run
from dibs.worker.execution.process_limits import memory_of

APPLICATION = """
import os, threading, time
from dibs import Dibs

app = Dibs()
kept = []


def close_all():
    while True:
        time.sleep(0.5)
        while kept:
            os.close(kept.pop())


if "CLOSE" in os.environ:
    threading.Thread(target=close_all, daemon=True).start()


@app.task(queue="pid")
def pid(n):
    return os.getpid()


@app.task(queue="slow_pid")
def slow_pid(n):
    time.sleep(0.3)
    return os.getpid()


@app.task(queue="grow")
def grow(n):
    kept.append(b"x" * 10_000_000)
    return os.getpid()


@app.task(queue="grow_alone", executor="process", size=100)
def grow_alone(n):
    kept.append(b"x" * 10_000_000)
    return os.getpid()


@app.task(queue="open_files")
def open_files(n):
    kept.append(os.open(__file__, os.O_RDONLY))
    time.sleep(0.01)
    return os.getpid()
"""


def work(folder: Path, queue: str, jobs: int, *words: str, files: int = 1024, **env: str) -> Counter[int]:
    """Run jobs by `dibs worker`, check that each ended at its first attempt, and count them by process."""
    (folder / "limited.py").write_text(APPLICATION)
    url = f"file:{folder}/jobs"
    asyncio.run(enqueue(url, queue, jobs))
    dibs = [
        sys.executable,
        "-m",
        "dibs",
        "worker",
        "limited:app",
        "--queues",
        queue,
        "--until",
        "empty",
        *words,
    ]
    done = subprocess.run(  # noqa: PLW1510 - the code is asserted with the log
        ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *dibs],
        cwd=folder, env={**os.environ, "DIBS_URL": url, **env}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    (folder / "log").write_text(done.stderr)
    assert 0 == done.returncode, done.stderr
    outcomes = asyncio.run(read(url, queue))
    assert {("completed", 1)} == {(each.state, each.attempts) for each in outcomes}, done.stderr
    assert jobs == len(outcomes)
    return Counter(each.result for each in outcomes)


async def enqueue(url: str, queue: str, jobs: int) -> None:
    async with Dibs(url) as app:
        await app.queue(queue).enqueue_many([{"args": [n], "kwargs": {}} for n in range(jobs)])


async def read(url: str, queue: str) -> list[Any]:
    async with Dibs(url) as app:
        return [status async for status in app.queue(queue).list("completed")]


def log_lines(folder: Path, part: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "log").read_text().splitlines() if line.startswith("{")]
    return [line for line in lines if part in line["message"]]


@pytest.mark.parametrize("queue", ["pid", "slow_pid"])
def test_a_process_makes_at_most_max_runs(tmp_path: Path, queue: str) -> None:
    pids = work(tmp_path, queue, 40, "--processes", "2", "--max-runs", "7")

    assert max(pids.values()) <= 7
    assert {"INFO"} == {line["level"] for line in log_lines(tmp_path, "max_runs")}


@pytest.mark.skipif(memory_of(os.getpid()) is None, reason="there is no /proc")
@pytest.mark.parametrize("queue", ["grow", "grow_alone"])
def test_a_process_above_max_memory_is_replaced(tmp_path: Path, queue: str) -> None:
    pids = work(tmp_path, queue, 40, "--processes", "1", "--max-memory", "200")

    assert len(pids) > 1
    assert {"WARNING"} == {line["level"] for line in log_lines(tmp_path, "max_memory")}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("processes", ["1", "0"])
def test_a_process_without_file_descriptors_claims_no_jobs(tmp_path: Path, processes: str) -> None:
    env = {"CLOSE": "1"} if processes == "0" else {}
    pids = work(tmp_path, "open_files", 300, "--processes", processes, files=128, **env)

    assert (len(pids) > 1) == (processes == "1")
    assert {"WARNING"} == {line["level"] for line in log_lines(tmp_path, "file descriptors left")}


@pytest.mark.parametrize("limits", [{"max_runs": 5}, {"max_memory": 500}])
async def test_a_worker_without_processes_has_no_limits(app: Dibs, limits: dict[str, Any]) -> None:
    app.queue("q").handler(handle)
    with pytest.raises(ConfigurationError, match="this worker has none: set processes"):
        await run(app, **limits)


def handle(_payload: Any) -> None: ...
