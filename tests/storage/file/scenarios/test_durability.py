"""The system calls of `fsync`, in their order, as strace reports them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.storage.file import FileStorage
from tests.storage.file.child_process import PROJECT

STRACE = shutil.which("strace")
needs_strace = pytest.mark.skipif(STRACE is None, reason="needs strace to see system calls")

PROGRAM = """
import asyncio, sys
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.file import FileStorage

async def main():
    async with FileStorage(sys.argv[1], fsync=sys.argv[2] == "1") as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])

asyncio.run(main())
"""


def synced(root: Path, fsync: str) -> list[str]:
    """Return the fsync and rename calls in order, with paths relative to the directory."""
    trace = root.with_suffix(".trace")
    assert STRACE is not None
    watch = [STRACE, "-f", "-qq", "-y", "-o", str(trace), "-e", "trace=fsync,fdatasync,rename"]
    subprocess.run([*watch, sys.executable, "-c", PROGRAM, str(root), fsync], cwd=PROJECT, check=True)
    calls = re.findall(r"(fsync|fdatasync|rename)\((.*)\)\s+= 0", trace.read_text())
    plain = [(name, re.sub(r"\d+<(.*)>", r"\1", words)) for name, words in calls]
    return [f"{name} {words}".replace(str(root), "ROOT") for name, words in plain]


COMMIT = [
    "fsync ROOT/tmp/0000000000000001",
    'rename "ROOT/tmp/0000000000000001", "ROOT/commits/0000000000000001"',
]


@needs_strace
def test_a_synced_commit_is_on_the_disk_before_its_name_and_its_name_before_the_answer(
    tmp_path: Path,
) -> None:
    told = synced(tmp_path / "jobs", "1")

    assert [*COMMIT, "fsync ROOT/commits"] == told[-3:]


@needs_strace
def test_a_new_directory_is_synced_before_its_first_commit(tmp_path: Path) -> None:
    """Without that, a power loss could remove the folder's name with the synced commits in it."""
    told = synced(tmp_path / "jobs", "1")[:-3]

    assert "fsync ROOT" in told
    assert f"fsync {tmp_path}" in told
    assert "fsync ROOT" == told[0], "the names of commits/ and tmp/ before the file format"
    assert told[1].startswith("fsync ROOT/tmp/format")


@needs_strace
def test_without_fsync_commits_are_not_synced(tmp_path: Path) -> None:
    told = synced(tmp_path / "jobs", "0")

    assert COMMIT[1:] == told[-1:]
    assert ["fsync ROOT"] == [one for one in told if one.startswith("fsync") and "format" not in one]


def test_durability_depends_on_fsync(tmp_path: Path) -> None:
    assert "power loss" in FileStorage(str(tmp_path), fsync=True).durability
    assert "fsync=1" in FileStorage(str(tmp_path)).durability
