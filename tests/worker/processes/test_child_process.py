"""The parent reads the messages of a child that may wait in batches, and loses none of them."""

from __future__ import annotations

import asyncio
from multiprocessing import Pipe
from typing import Final

import pytest

from dibs.worker.processes import child_process
from dibs.worker.processes.child_process import LARGE_READ, ChildProcess

#: Seconds for which no test waits.
NEVER: Final = 1000.0
#: Turns of the event loop in which a reader gets its data.
TURNS: Final = 20


class Child(ChildProcess):
    """The parent's side of a child without a process: the test writes its messages, and ends it."""

    def __init__(self) -> None:
        parent_end, self.child_end = Pipe()
        self.received: list[str] = []
        super().__init__(parent_end, lambda raw: self.received.append(raw.decode()), self.received.append)
        self.may_wait = True

    def write(self, message: str) -> None:
        self.child_end.send_bytes(message.encode())

    def end(self) -> None:
        self._finish_after_exit(0, "ended")


@pytest.fixture
async def child(monkeypatch: pytest.MonkeyPatch) -> Child:
    monkeypatch.setattr(child_process, "READ_PAUSE", NEVER)
    return Child()


async def turn() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_messages_after_the_first_wait(child: Child) -> None:
    child.write("first")
    await turn()
    child.write("second")
    await turn()

    assert ["first"] == child.received


async def test_waiting_messages_are_read_before_the_exit_is_reported(child: Child) -> None:
    child.write("first")
    await turn()
    child.write("second")
    child.write("third")
    child.end()

    assert ["first", "second", "third", "ended"] == child.received


async def test_messages_are_read_after_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "READ_PAUSE", 0.001)
    child = Child()
    for message in ("first", "second"):
        child.write(message)
        while message not in child.received:  # noqa: ASYNC110 - the child sends no event
            await asyncio.sleep(0.001)

    assert ["first", "second"] == child.received


async def test_many_bytes_cause_no_pause(child: Child) -> None:
    child.write("x" * LARGE_READ)
    await turn()
    child.write("second")
    await turn()

    assert "second" == child.received[-1]


async def test_a_quiet_child_wakes_the_parent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "READ_PAUSE", 0.001)
    monkeypatch.setattr(child_process, "QUIET_SECONDS", -1.0)
    child = Child()
    child.write("first")
    while "first" not in child.received or child._read_timer is not None:  # noqa: ASYNC110 - one poll
        await asyncio.sleep(0)
    monkeypatch.setattr(child_process, "READ_PAUSE", NEVER)
    child.write("second")
    await turn()

    assert ["first", "second"] == child.received


async def test_a_child_whose_messages_may_not_wait_causes_no_pause(child: Child) -> None:
    child.may_wait = False
    for message in ("first", "second"):
        child.write(message)
        await turn()

    assert ["first", "second"] == child.received
