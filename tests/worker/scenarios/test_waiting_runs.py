"""Runs that wait for other jobs and leave no capacity to start them: the log names them, and the way out."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs

APPLICATION = """
import time
from dibs import Dibs
from dibs.worker.dispatch import in_flight

in_flight.LOOK_EVERY = 0.1
app = Dibs()


@app.task(queue="child", queue_priority=1)
async def child():
    return 2


@app.task(queue="parent", size=50, timeout=3, max_timeouts=0)
async def parent():
    return await (await child.enqueue()).result()


@app.task(queue="blocking", size=50, max_retries=0)
def blocking():
    return child.sync.enqueue().result(wait=3)


@app.task(queue="alone", size=50, executor="process", timeout=15, max_timeouts=0)
async def alone():
    return await (await child.enqueue()).result()


@app.task(queue="busy", size=50)
def busy():
    time.sleep(3)
"""


def warnings_of(folder: Path, *queues: str) -> list[dict[str, Any]]:
    """Run a job of each queue in one process, and return the warnings about runs that wait."""
    (folder / "family.py").write_text(APPLICATION)
    url = f"file:{folder}/jobs"
    asyncio.run(enqueue(url, *queues))
    words = ["worker", "family:app", "--processes", "1", "--until", "empty", "--url", url]
    done = subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        cwd=folder, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    return [line for line in lines if line["level"] == "WARNING" and "wait for other jobs" in line["message"]]


async def enqueue(url: str, *queues: str) -> None:
    async with Dibs(url) as app:
        for queue in queues:
            await app.queue(queue).enqueue({"args": [], "kwargs": {}})


@pytest.mark.parametrize("kind", ["parent", "blocking", "alone"])
def test_runs_that_wait_and_fill_a_process_are_named(tmp_path: Path, kind: str) -> None:
    (warning,) = warnings_of(tmp_path, kind, kind)

    assert f"{kind} (family.{kind}): 2 runs with 100 units" in warning["message"]
    assert "capacity of 100 units" in warning["message"]
    assert "make a flow" in warning["message"]
    assert [kind] == warning["queues"]


@pytest.mark.parametrize("queues", [("parent", "busy"), ("busy", "busy"), ("parent",)])
def test_a_process_with_a_run_that_works_or_room_for_one_is_not_named(
    tmp_path: Path, queues: tuple[str, ...]
) -> None:
    assert [] == warnings_of(tmp_path, *queues)
