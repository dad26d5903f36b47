"""`dibs spark history` as a process: its end by a signal, and errors while it follows a storage."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
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
        child.wait()
        if child.stdout:
            child.stdout.close()


def read_until(child: subprocess.Popen[str], text: str) -> str:
    assert child.stdout
    for line in child.stdout:
        if text in line:
            return line
    raise AssertionError(text)


@pytest.mark.parametrize("engine", ["duckdb", pytest.param("spark", marks=pytest.mark.spark)])
def test_sigterm_to_the_process_group_finishes_the_increment(tmp_path: Path, engine: str) -> None:
    """Supervisors send SIGTERM to a whole process group, which must not end Java under the increment."""
    url = f"file:{tmp_path}/jobs"
    asyncio.run(simulate(url))
    with following(url, tmp_path / "warehouse", "--engine", engine) as child:
        read_until(child, "generation 1:")
        asyncio.run(simulate(url))
        while not [*(tmp_path / "warehouse").glob("staging/*/*")]:
            assert child.poll() is None
            time.sleep(0.01)
        os.killpg(child.pid, signal.SIGTERM)
        output, _ = child.communicate()

    assert (0, False) == (child.returncode, "Traceback" in output)
    assert 2 == Warehouse(tmp_path / "warehouse").generation


def test_follow_goes_on_when_the_storage_is_there(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/jobs"
    with following(url, tmp_path / "warehouse") as child:
        assert "the next one starts in 1 s" in read_until(child, "finds no directory")
        asyncio.run(simulate(url))
        read_until(child, "generation 1:")


def kill_java(child: subprocess.Popen[str]) -> None:
    """Kill the Java of `dibs spark history`, which must have one."""
    [java] = [each for each in psutil.Process(child.pid).children(recursive=True) if each.name() == "java"]
    java.kill()
    java.wait()


@pytest.mark.spark
def test_follow_starts_java_again(tmp_path: Path) -> None:
    """A killed Java fails the increment that uses it, and no later one."""
    url, warehouse = f"file:{tmp_path}/jobs", tmp_path / "warehouse"
    asyncio.run(simulate(url))
    with following(url, warehouse, "--engine", "spark") as child:
        read_until(child, "generation 1:")
        # Kill Java between two increments: the next increment starts a new one before it needs it.
        kill_java(child)
        asyncio.run(simulate(url))
        assert child.stdout
        lines = iter(child.stdout.readline, "")
        between = [*takewhile(lambda line: "generation 2:" not in line, lines)]
        assert [] == [line for line in between if "failed" in line]
        asyncio.run(simulate(url))
        while not [*warehouse.glob("staging/*/*")]:
            assert child.poll() is None
            time.sleep(0.01)
        kill_java(child)
        assert "the next one starts in 1 s" in read_until(child, "failed")
        read_until(child, "generation 3:")


def test_a_url_is_no_local_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["spark", "history", "--warehouse", "ftp://host/history", "--url", f"file:{tmp_path}"]
    done = CliRunner().invoke(app, arguments)

    assert 1 == done.exit_code
    assert "no warehouse can be at ftp://" in done.stderr
    assert [] == [*tmp_path.iterdir()]


def test_a_warehouse_on_s3_is_filled_and_reported(s3_bucket: str, tmp_path: Path) -> None:
    """`s3a` is the scheme that Hadoop uses."""
    url, warehouse = f"file:{tmp_path}/jobs", s3_bucket.replace("s3:", "s3a:") + "/command"
    asyncio.run(simulate(url))
    runner = CliRunner()
    done = runner.invoke(app, ["spark", "history", "--warehouse", warehouse, "--url", url])
    report = runner.invoke(app, ["spark", "report", "--warehouse", warehouse, "--json"])

    assert (0, 0) == (done.exit_code, report.exit_code), done.output + report.output
    assert 1 == json.loads(report.stdout)["generation"]
