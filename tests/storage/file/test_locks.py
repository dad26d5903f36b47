"""The commit lock, when the system refuses to release it, and while another process holds it."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from dibs.errors import OutcomeUnknown
from dibs.storage.file import locks
from dibs.storage.file.directory import Directory
from tests.storage.file.folder import ids_in, opened, request


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Make the next unlocks fail, as on a file system whose lock server is not reachable."""
    real, left = fcntl.flock, times

    def flock(descriptor: int, operation: int) -> None:
        nonlocal left
        if operation == fcntl.LOCK_UN and left:
            left -= 1
            raise OSError(5, "Input/output error")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


async def test_a_failed_release_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an earlier version the storage kept the lock, and all other processes waited for ever."""
    async with opened(tmp_path) as mine, opened(tmp_path) as others:
        await others.enqueue("q", [request("z")])
        refusing(monkeypatch, 1)
        await mine.enqueue("q", [request("a")])
        await others.enqueue("q", [request("b")])

    assert ["a", "b", "z"] == await ids_in(tmp_path)


async def test_a_lock_that_cannot_be_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as mine:
        await mine.enqueue("q", [request("z")])
        refusing(monkeypatch, 2)
        with pytest.raises(OutcomeUnknown, match="cannot be released"):
            await mine.enqueue("q", [request("a")])
        await mine.enqueue("q", [request("b")])

    assert {"b", "z"} <= set(await ids_in(tmp_path))


async def test_a_storage_says_for_how_long_it_has_waited_for_the_lock(tmp_path: Path) -> None:
    async with opened(tmp_path) as mine:
        await mine.enqueue("q", [request("z")])
        with FileLock(tmp_path / "lock", thread_local=False):
            waiting = asyncio.create_task(mine.enqueue("q", [request("a")]))
            async with asyncio.timeout(45):
                while "the step before it" in mine._lock.waits_for:  # noqa: ASYNC110 - the lock sends no event
                    await asyncio.sleep(0.01)
            reason = mine._lock.waits_for
        await waiting

        assert "lock, which another process has held for " in reason
        assert 60 > float(reason.partition("has held for ")[2].partition(" s")[0])
        assert "the step before it" in mine._lock.waits_for


async def test_the_lock_file_is_locked_under_its_name(tmp_path: Path) -> None:
    """A program that restores a backup may replace the file while a storage has it open."""
    async with opened(tmp_path) as mine, opened(tmp_path) as others:
        await mine.enqueue("q", [request("a")])
        (tmp_path / "lock").unlink()
        await others.enqueue("q", [request("b")])
        with FileLock(tmp_path / "lock", thread_local=False):
            waiting = asyncio.create_task(mine.enqueue("q", [request("c")]))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
        await waiting

    assert ["a", "b", "c"] == await ids_in(tmp_path)


async def test_a_step_opens_one_file(tmp_path: Path) -> None:
    """The file is its commit. An earlier version also opened the lock file, and tried the next commit."""
    opens: list[str] = []
    recording = False

    def record(event: str, args: tuple[Any, ...]) -> None:
        if recording and event == "open":
            opens.append(str(args[0]))

    sys.addaudithook(record)
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("a")])
        recording = True
        await storage.enqueue("q", [request("b")])
        recording = False

    assert ["tmp/0000000000000002"] == opens


async def test_a_forked_child_closes_the_lock_file(tmp_path: Path) -> None:
    """A lock that the parent holds at the fork would outlive the parent if the child had the file open."""
    async with opened(tmp_path) as storage:
        await storage.enqueue("q", [request("a")])
        lock = storage._lock._file
        assert lock is not None
        child = os.fork()
        if child == 0:
            os._exit(0 if lock.closed else 1)
        _, status = os.waitpid(child, 0)  # noqa: ASYNC222 - the child ends at once

        assert 0 == os.waitstatus_to_exitcode(status)
        assert not lock.closed


async def test_a_fork_while_a_folder_is_created_keeps_no_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child lives on, as a server does that forks its workers."""
    children: list[int] = []
    write = Directory._write_format

    def fork_and_write(self: Directory) -> None:
        children.append(os.fork())
        if children[-1] == 0:
            signal.pause()
        write(self)

    monkeypatch.setattr(Directory, "_write_format", fork_and_write)
    monkeypatch.setattr(locks, "ACQUIRE_TIMEOUT", 5)
    try:
        async with opened(tmp_path) as storage:
            await storage.enqueue("q", [request("a")])
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)  # noqa: ASYNC222 - the child ends at once

    assert 1 == len(children)
    assert ["a"] == await ids_in(tmp_path)
