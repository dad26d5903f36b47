"""The pipe to a process that hangs: the parent never waits for it."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection

from dibs.worker.processes.child_process import FrameDecoder, SpawnedProcess
from tests.worker.supervisors import TIMEOUT


def send_half(pipe: Connection) -> None:
    """Send a message and half of another, then stop."""
    pipe.send_bytes(b"whole")
    os.write(pipe.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGSTOP)


def never_read(pipe: Connection) -> None:
    """Send a message, and never read the pipe."""
    pipe.send_bytes(b"here")
    signal.pause()


class Child:
    """A spawned process, its messages, and its exit."""

    def __init__(self, target: Callable[[Connection], None]) -> None:
        self.messages: list[bytes] = []
        self.has_sent = asyncio.Event()
        self.end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.process = SpawnedProcess(target, (), self._on_message, self.end.set_result)

    def _on_message(self, message: bytes) -> None:
        self.messages.append(message)
        self.has_sent.set()


async def test_the_parent_does_not_wait_for_half_a_message() -> None:
    async with asyncio.timeout(TIMEOUT):
        child = Child(send_half)
        await child.has_sent.wait()
        child.process.kill()
        reason = await child.end

    assert ([b"whole"], "was killed by SIGKILL") == (child.messages, reason)


async def test_a_process_that_never_reads_is_killed_when_its_pipe_is_full() -> None:
    async with asyncio.timeout(TIMEOUT):
        child = Child(never_read)
        await child.has_sent.wait()
        while not child.end.done():
            child.process.send(b"x" * 100)
            await asyncio.sleep(0)
        reason = await child.end

    assert "was killed by SIGKILL" == reason


def test_messages_are_decoded_from_chunks_of_any_size() -> None:
    messages = [b"", b"a", b"x" * 70_000, b"last"]
    stream = b"".join(struct.pack("!i", len(message)) + message for message in messages)
    for step in (1, 3, 4096, len(stream)):
        decoder, decoded = FrameDecoder(), list[bytes]()
        for start in range(0, len(stream), step):
            decoded += decoder.decode(stream[start : start + step])

        assert messages == decoded
