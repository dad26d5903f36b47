"""A process of ours and the pipe to it, from its parent's side. Everything here runs on the parent's loop."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

#: How multiprocessing frames a message: its length, then its bytes; ours are shorter than 2 GiB.
_LENGTH: Final = struct.Struct("!i")


class Offspring:
    """A child process: what it says comes in order, and its end after all it said."""

    def __init__(
        self, pipe: Connection, heard: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._ended = ended
        self._pipe = pipe
        self._frames = Frames()
        self._loop.add_reader(pipe.fileno(), self._read)
        self.alive = True
        #: 0 while it has none.
        self.pid = 0
        self.exit_code: int | None = None

    def send(self, message: bytes) -> None:
        """Say something; a child that is gone hears nothing, and one that has not listened for long ends."""
        if not self.alive:
            return
        if not select.select([], [self._pipe], [], 0)[1]:
            # It was told hundreds of things and took none: it hangs, and must not let its parent hang.
            self.kill()
            return
        with suppress(OSError):
            self._pipe.send_bytes(message)

    def kill(self) -> None:
        """End it now, with all that was started in it. Its end is told as any other."""
        raise NotImplementedError

    def _read(self) -> None:
        if not self._take_in():
            self._loop.remove_reader(self._pipe.fileno())

    def _take_in(self) -> bool:
        """Hear what has come, and tell whether more may. Never waits for the rest of a message."""
        try:
            data = os.read(self._pipe.fileno(), 65536)
        except OSError:
            return False
        for message in self._frames.cut(data):
            self._heard(message)
        return bool(data)

    def _over(self, code: int | None, why: str = "") -> None:
        """It has ended: hear the last it said, and tell the end."""
        self.alive = False
        self.exit_code = code
        self._loop.remove_reader(self._pipe.fileno())
        while select.select([self._pipe], [], [], 0)[0] and self._take_in():
            pass
        self._pipe.close()
        self._ended(why or reason(code))


class Frames:
    """Bytes as they come, cut into messages.

    Not Connection.recv_bytes: a child may hang, or be stopped, between the first and the last byte of a
    message, and whoever waits for the rest renews no lease.
    """

    def __init__(self) -> None:
        self._rest = b""

    def cut(self, data: bytes) -> Iterator[bytes]:
        """Yield what is complete now."""
        self._rest += data
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            end = _LENGTH.size + length
            if len(self._rest) < end:
                return
            message, self._rest = self._rest[_LENGTH.size : end], self._rest[end:]
            yield message


def kill_group(pid: int) -> None:
    """End all that was started in a process of ours."""
    # It leads a group from its first steps on; before that there is none of this number.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def reason(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
