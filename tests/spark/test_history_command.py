"""`dibs spark history` as a process: its end by a signal, and errors while it follows a storage."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from dibs.cli.main import app
from dibs.spark.history.warehouse import Warehouse
from dibs.storage.registry import open_storage
from tests.spark.random_day import RandomDay


async def simulate(url: str, steps: int = 40) -> None:
    async with open_storage(url, clock="manual") as storage:
        day = RandomDay(storage)
        await day.prepare()
        await day.advance(steps)


@contextmanager
def following(url: str, warehouse: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Yield `dibs spark history --follow` in a process group of its own."""
    command = [sys.executable, "-m", "dibs", "spark", "history", "--url", url, "--follow", "--every", "1s"]
    child = subprocess.Popen(
        [*command, "--warehouse", str(warehouse), *options],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0,
    )  # fmt: skip
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def read_until(child: subprocess.Popen[str], text: str) -> str:
    assert child.stdout
    for line in child.stdout:
        if text in line:
            return line
    raise AssertionError(text)


@pytest.mark.spark
def test_sigterm_to_the_process_group_finishes_the_increment(tmp_path: Path) -> None:
    """Supervisors send SIGTERM to a whole process group, which must not end Java under the increment."""
    url = f"file:{tmp_path}/jobs"
    asyncio.run(simulate(url))
    with following(url, tmp_path / "warehouse") as child:
        read_until(child, "generation 000000000001")
        asyncio.run(simulate(url))
        while not [*(tmp_path / "warehouse").glob("staging/*/*")]:
            assert child.poll() is None
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGTERM)
        output, _ = child.communicate()

    assert (0, False) == (child.returncode, "Traceback" in output)
    assert "000000000002" == Warehouse.existing(tmp_path / "warehouse").generation


@pytest.mark.spark
def test_follow_goes_on_after_errors_of_the_storage_and_of_java(tmp_path: Path) -> None:
    url, jobs = f"file:{tmp_path}/jobs", tmp_path / "jobs"
    with following(url, tmp_path / "warehouse") as child:
        assert "the next one starts in 1 s" in read_until(child, "finds no directory")
        asyncio.run(simulate(url))
        read_until(child, "generation 000000000001")
        for process in psutil.Process(child.pid).children(recursive=True):
            if process.name() == "java":
                process.kill()
        asyncio.run(simulate(url))
        assert "the next one starts in 1 s" in read_until(child, "failed")
        read_until(child, "generation 000000000002")
    assert jobs.is_dir()


@pytest.mark.parametrize("warehouse", ["s3a://bucket/history", "hdfs://node/history"])
def test_a_url_is_no_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warehouse: str) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["spark", "history", "--warehouse", warehouse, "--url", f"file:{tmp_path}"]
    done = CliRunner().invoke(app, arguments)

    assert 2 == done.exit_code
    assert "is a URL" in done.stderr
    assert [] == [*tmp_path.iterdir()]
