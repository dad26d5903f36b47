"""Several processes on one directory: a stopped process goes on, and commits of another one wake waits."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dibs.model.results import WaitResult
from dibs.storage.file import FileStorage
from tests.storage.file.child_process import Child
from tests.storage.file.folder import opened, request


@pytest.fixture
def children(tmp_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(children: ExitStack, root: Path) -> Child:
    child = children.enter_context(Child(root))
    assert "opened" == child.answer()
    return child


def started(children: ExitStack, root: Path, count: int) -> list[Child]:
    """Start several processes at the same time, so that they may create the directory together."""
    many = [children.enter_context(Child(root)) for _ in range(count)]
    assert ["opened"] * count == [child.answer() for child in many]
    return many


async def test_a_process_that_was_stopped_during_a_checkpoint_continues(
    tmp_path: Path, children: ExitStack
) -> None:
    """Another process removes commits that the stopped one has not read; it reads the checkpoint instead."""
    asleep, awake = started(children, tmp_path / "jobs", 2)
    assert "done" == asleep.ask("enqueue", ["a"])
    os.kill(asleep.pid, signal.SIGSTOP)
    for verb, words in (("enqueue", ["b"]), ("checkpoint", None), ("enqueue", ["c"]), ("checkpoint", None)):
        assert "done" == awake.ask(verb, *([words] if words else []))
    assert "done" == awake.ask("enqueue", ["d"])
    os.kill(asleep.pid, signal.SIGCONT)

    assert ["a", "b", "c", "d"] == asleep.ask("ids")
    assert "done" == asleep.ask("enqueue", ["e"])
    assert ["a", "b", "c", "d", "e"] == awake.ask("ids")


async def waiting_on(storage: FileStorage) -> asyncio.Task[WaitResult]:
    """Start a wait for work, and return it once it is registered and not yet woken."""
    token = (await storage.claim("q", "none", 1)).token
    task = asyncio.create_task(storage.wait(["q"], since={"q": token}))
    while not storage._wakeups._by_queue:  # noqa: ASYNC110 - the thread sends no event
        await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_an_enqueue_of_another_process_wakes_a_wait_before_the_poll(
    tmp_path: Path, children: ExitStack
) -> None:
    """The poll interval is ten minutes, so the watch must wake the wait."""
    other = start(children, tmp_path / "jobs")
    async with opened(tmp_path / "jobs", poll=600.0) as storage, asyncio.timeout(45):
        task = await waiting_on(storage)
        assert "done" == other.ask("enqueue", ["a"])

        assert (await task).woken


async def test_a_lost_notification_delays_a_wait_by_one_poll(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs", poll=0.02) as storage, opened(tmp_path / "jobs") as other:
        storage._watch = SilentWatch()  # type: ignore[assignment]
        task = await waiting_on(storage)
        await other.enqueue("q", [request("a")])

        assert (await task).woken


async def test_many_lost_notifications_delay_a_wait_by_one_poll(tmp_path: Path, children: ExitStack) -> None:
    """A stopped process gets notifications late or not at all; its next read finds all commits."""
    asleep, awake = started(children, tmp_path / "jobs", 2)
    asleep.send("wait", 0.0)
    assert asleep.answer() is False
    os.kill(asleep.pid, signal.SIGSTOP)
    for number in range(300):
        awake.send("enqueue", [f"{number:03}"])
    assert ["done"] * 300 == [awake.answer() for _ in range(300)]
    os.kill(asleep.pid, signal.SIGCONT)

    assert asleep.ask("wait", 45.0) is True
    assert 300 == len(asleep.ask("ids"))


class SilentWatch:
    """A watch without notifications, as after an overflow of inotify's queue."""

    def stop(self) -> None:
        """Do nothing."""
