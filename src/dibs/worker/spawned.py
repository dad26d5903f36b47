"""A process of ours and the pipe to it, from its parent's side. Everything here runs on the parent's loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

#: Spawn, not fork: a fork copies locks that other threads hold, and never lets them go.
CONTEXT: Final = multiprocessing.get_context("spawn")
#: How our processes are called, by which they know themselves while they import the user's script.
NAME: Final = "dibs-worker"
#: How multiprocessing frames a message: its length, then its bytes; ours are shorter than 2 GiB.
_LENGTH: Final = struct.Struct("!i")
#: The exit code of a process whose script tried to start workers while it was imported.
NO_GUARD: Final = 78


class Spawned:
    """A child process: what it says comes in order, and its end after all it said."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        heard: Callable[[bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._ended = ended
        self._pipe, theirs = CONTEXT.Pipe()
        self._frames = Frames()
        # Started on the loop's own thread: the child asks the kernel to die with the thread that made it.
        self._process = CONTEXT.Process(target=target, args=(theirs, *arguments), name=NAME)
        self._process.start()
        theirs.close()
        self._watched = _watch_on(self._process)
        self._loop.add_reader(self._pipe.fileno(), self._read)
        self._loop.add_reader(self._watched, self._gone)
        self.alive = True

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def exit_code(self) -> int | None:
        return self._process.exitcode

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
        if self.alive:
            self._kill_group()
            self._process.kill()

    def _kill_group(self) -> None:
        # It leads a group from its first steps on; before that there is none of this number.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

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

    def _gone(self) -> None:
        self._loop.remove_reader(self._watched)
        self._loop.remove_reader(self._pipe.fileno())
        # Before its number is free for others: what its handlers had started ends with it.
        self._kill_group()
        self._process.join()
        self.alive = False
        while select.select([self._pipe], [], [], 0)[0] and self._take_in():
            pass
        self._pipe.close()
        if self._watched != self._process.sentinel:
            os.close(self._watched)
        self._ended(reason(self._process.exitcode))


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


def _watch_on(process: Any) -> int:
    """Return what becomes readable when the process ends.

    multiprocessing's sentinel is a pipe that lives on in whatever a handler forked; Linux has better.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    return int(process.sentinel)


def reason(code: int | None) -> str:
    """Return in words how a process ended."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def leave_if_ours() -> None:
    """End this process if it is one of ours that is importing the user's script: the script starts workers.

    Its parent reads the exit code and says so once. An exception could be caught, or shown N times.
    """
    process = multiprocessing.current_process()
    if process.name == NAME and getattr(process, "_inheriting", False):
        os._exit(NO_GUARD)


Pipe = Connection
