"""The pipe to a process that does not behave: whoever holds the other end must never wait for it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection

from dibs.worker.processes.child_process import FrameDecoder
from dibs.worker.processes.spawn import SpawnedProcess
from tests.worker.fleet import PATIENCE


def half(pipe: Connection) -> None:
    """Say one thing and half of another, and stand still."""
    pipe.send_bytes(b"whole")
    os.write(pipe.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf(pipe: Connection) -> None:
    """Never listen."""
    pipe.send_bytes(b"here")
    signal.pause()


class Child:
    """A process, what it said, and how it ended."""

    def __init__(self, target: Callable[[Connection], None]) -> None:
        self.said: list[bytes] = []
        self.spoke = asyncio.Event()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.process = SpawnedProcess(target, (), self._heard, self.end.set_result)

    def _heard(self, message: bytes) -> None:
        self.said.append(message)
        self.spoke.set()


async def test_half_a_message_is_not_waited_for() -> None:
    async with asyncio.timeout(PATIENCE):
        child = Child(half)
        await child.spoke.wait()
        child.process.kill()
        reason = await child.end

    assert ([b"whole"], "was killed by SIGKILL") == (child.said, reason)


async def test_a_process_that_never_listens_is_ended_when_its_pipe_is_full() -> None:
    async with asyncio.timeout(PATIENCE):
        child = Child(deaf)
        await child.spoke.wait()
        while not child.end.done():
            child.process.send(b"x" * 100)
            await asyncio.sleep(0)
        reason = await child.end

    assert "was killed by SIGKILL" == reason


def test_messages_are_cut_wherever_the_bytes_were() -> None:
    messages = [b"", b"a", b"x" * 70_000, b"last"]
    stream = b"".join(struct.pack("!i", len(message)) + message for message in messages)
    for step in (1, 3, 4096, len(stream)):
        frames, cut = FrameDecoder(), list[bytes]()
        for place in range(0, len(stream), step):
            cut += frames.decode(stream[place : place + step])

        assert messages == cut
