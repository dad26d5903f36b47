"""`dibs` as PID 1 of a container: it reaps orphans, and loses no signal."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from dibs import Dibs
from tests.cli.shell import DIBS, Shell

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")
APPLICATION = """
import os, pathlib, signal, subprocess, time
from dibs import Dibs

app = Dibs()


@app.task(queue="orphans")
def orphans() -> int:
    return subprocess.run(["sh", "-c", "sleep 0.1 & exit 0"]).returncode


pathlib.Path("importing").touch()
if "SLOW_IMPORT" in os.environ:
    time.sleep(3600)
"""


def may_unshare() -> bool:
    return (
        shutil.which("unshare") is not None
        and not subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode
    )


pytestmark = pytest.mark.skipif(not may_unshare(), reason="this user may not make a PID namespace")


@contextmanager
def worker_as_pid_1(shell: Shell, **env: str) -> Iterator[tuple[subprocess.Popen[str], psutil.Process]]:
    """Start `dibs worker` as PID 1, and yield the program that waits for it, and PID 1."""
    (shell.folder / "boxed.py").write_text(APPLICATION)
    box = subprocess.Popen(
        [*UNSHARE, *DIBS, "worker", "boxed:app", "--processes", "1", "--url", shell.url],
        cwd=shell.folder,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until((shell.folder / "importing").exists)
        yield box, psutil.Process(box.pid).children()[0]
    finally:
        if box.poll() is None:
            for process in psutil.Process(box.pid).children():
                process.kill()
            box.communicate()


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it took a minute"
        time.sleep(0.02)


def test_orphans_are_reaped_and_a_stop_is_passed_on(shell: Shell) -> None:
    with worker_as_pid_1(shell) as (box, first):
        asyncio.run(run_jobs(shell.url, 5))
        wait_until(lambda: not any(each.status() == psutil.STATUS_ZOMBIE for each in first.children()))
        first.send_signal(signal.SIGTERM)
        out, _ = box.communicate(timeout=60)

    assert "stopped: 5 completed" in out
    assert 0 == box.returncode


async def run_jobs(url: str, number: int) -> None:
    async with Dibs(url) as app:
        queue = app.queue("orphans")
        for ticket in [await queue.enqueue({"args": [], "kwargs": {}}) for _ in range(number)]:
            assert 0 == await ticket.result(wait=60)


def test_a_stop_during_the_import_of_the_application_is_kept(shell: Shell) -> None:
    with worker_as_pid_1(shell, SLOW_IMPORT="1") as (box, first):
        first.send_signal(signal.SIGTERM)
        box.communicate(timeout=60)

    assert 128 + signal.SIGTERM == box.returncode


def test_other_processes_have_no_init() -> None:
    code = "import os; from dibs.cli.main import run_below_init; run_below_init(); print(os.getppid())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert f"{os.getpid()}\n" == done.stdout
