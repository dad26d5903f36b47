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
    watch = [STRACE, "-f", "-qq", "-y", "-o", str(trace), "-e", "trace=fsync,fdatasync,rename,renameat"]
    subprocess.run([*watch, sys.executable, "-c", PROGRAM, str(root), fsync], cwd=PROJECT, check=True)
    calls = re.findall(r"(fsync|fdatasync|rename)(?:at)?\((.*)\)\s+= 0", trace.read_text())
    # renameat(5<ROOT>, "tmp/format", 5<ROOT>, "format") is a rename of ROOT/tmp/format.
    below = [(name, re.sub(r'(\d+<[^>]*)>, "([^"]*)"', r"\1/\2>", words)) for name, words in calls]
    plain = [(name, re.sub(r"\d+<([^>]*)>", r"\1", words)) for name, words in below]
    return [f"{name} {words}".replace(str(root), "ROOT") for name, words in plain]


COMMIT = [
    "fsync ROOT/tmp/0000000000000001",
    "rename ROOT/tmp/0000000000000001, ROOT/commits/0000000000000001",
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

    first = [one.replace("/0000000000000001", "/0000000000000000") for one in COMMIT]
    assert [
        *first,
        "fsync ROOT/commits",
        # The names of the folders before the file `format`.
        "fsync ROOT",
        "fsync ROOT/tmp/format",
        "rename ROOT/tmp/format, ROOT/format",
        "fsync ROOT",
        f"fsync {tmp_path}",
    ] == told


@needs_strace
def test_without_fsync_commits_are_not_synced(tmp_path: Path) -> None:
    told = synced(tmp_path / "jobs", "0")

    assert ["fsync ROOT", COMMIT[1]] == told[-2:]


def test_durability_depends_on_fsync(tmp_path: Path) -> None:
    assert "power loss" in FileStorage(str(tmp_path), fsync=True).durability
    assert "fsync=1" in FileStorage(str(tmp_path)).durability
