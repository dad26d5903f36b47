"""A writer that is killed at any moment: answered steps are kept, the pending step is complete or absent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.model.job import Slot
from tests.storage.file.child_process import PROJECT
from tests.storage.file.folder import commits, names, opened, request
from tests.storage.file.killed_writer import STEPS

#: The state of each id, without values that depend on random leases and fences.
State = dict[str, tuple[object, ...]]


async def state_of(root: Path) -> State:
    """Return the state of each id, as a new storage on the directory sees it."""
    async with opened(root) as storage:
        slots = dict(zip("abcd", await storage.get("q", list("abcd")), strict=True))
        counts = await storage.counts(["q", "q!fail"])
    seen = {id: visible(slot) for id, slot in slots.items()}
    return seen | {name: (one.waiting, one.active, one.failed) for name, one in counts.items()}


def visible(slot: Slot) -> tuple[object, ...]:
    job, outcome = slot.current, slot.outcome
    return (
        None if job is None else (job.data.payload, job.run is not None, job.attempts, job.enqueues),
        slot.successor is not None,
        None if outcome is None else (outcome.kind, outcome.result),
    )


async def states(root: Path) -> list[State]:
    """Return the expected state before the first step and after each step."""
    async with opened(root) as storage:
        seen = [await state_of(root)]
        for step in STEPS:
            await step(storage)
            seen.append(await state_of(root))
    return seen


async def check(root: Path, answered: int, expected: list[State]) -> None:
    """Check that the directory has the answered steps or one step more, and that it still works."""
    assert await state_of(root) in expected[answered : answered + 2], (root, answered)
    assert set(names(root)) <= {"format", "lock", "commits", "checkpoint", "reserve", "tmp"}
    async with opened(root) as storage:
        await storage.enqueue("q", [request("z")])
        await storage._run_on_thread(storage._write_checkpoint)
    async with opened(root) as storage:
        [slot] = await storage.get("q", ["z"])

    assert slot.current is not None
    assert 1 == len(commits(root)), "the commit of the checkpoint"


def killed_by_itself(folder: Path) -> list[tuple[int, int, bool]]:
    """Return for each call its number, how many steps were answered, and whether the writer died."""
    command = [sys.executable, "-m", "tests.storage.file.killed_writer", str(folder)]
    run = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=True)
    return [(count, answered, died) for count, answered, died in map(json.loads, run.stdout.splitlines())]


async def test_killed_before_each_call_that_touches_the_file_system(tmp_path: Path) -> None:
    """Each audited call of opening, committing and writing a checkpoint, one after the other."""
    expected = await states(tmp_path / "whole")
    tries = killed_by_itself(tmp_path)
    for count, answered, _ in tries:
        await check(tmp_path / str(count), answered, expected)

    assert (len(STEPS), False) == tries[-1][1:]
    assert all(died for _, _, died in tries[:-1])
    assert set(range(len(STEPS))) <= {answered for _, answered, _ in tries}
    assert len(tries) > 60


STRACE = shutil.which("strace")
#: System calls that Python makes rarely while it starts, so nearly all of them belong to the storage.
CALLS = ("write", "fsync", "unlinkat", "flock", "mkdirat")


def killed_by_strace(root: Path, call: str, when: int) -> tuple[int, bool]:
    """Run the same writer, and kill it at its `when`-th call of this system call."""
    answers, write_end = os.pipe()
    program = (
        "import asyncio, pathlib, tests.storage.file.killed_writer as killed\n"
        f"asyncio.run(killed.work(pathlib.Path({str(root)!r}), {write_end}))"
    )
    assert STRACE is not None
    run = subprocess.run(
        [STRACE, "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}",
         "-e", f"inject={call}:signal=SIGKILL:when={when}", sys.executable, "-c", program],
        cwd=PROJECT, pass_fds=[write_end], check=False,
    )  # fmt: skip
    os.close(write_end)
    answered = len(os.read(answers, 100))
    os.close(answers)
    return answered, run.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL)


@pytest.mark.skipif(STRACE is None, reason="needs strace to kill between any two system calls")
@pytest.mark.parametrize(
    ("call", "moments"),
    [
        ("renameat", range(1, 100)),
        *(pytest.param(call, range(1, 3000), marks=pytest.mark.chaos) for call in CALLS),
    ],
)
async def test_killed_in_the_middle_of_each_system_call(tmp_path: Path, call: str, moments: range) -> None:
    """strace kills the process, also in system calls without an audit event of Python."""
    expected, when, died = await states(tmp_path / "whole"), 0, True
    for when in moments:
        answered, died = killed_by_strace(tmp_path / str(when), call, when)
        if (tmp_path / str(when)).exists():
            await check(tmp_path / str(when), answered, expected)
        if not died:
            break

    assert not died
    assert when > 5
