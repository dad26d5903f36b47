"""The parent's side of a child process and of the pipe to it. All methods run on the parent's event loop.

`SpawnedProcess` starts a child as a new Python interpreter, by the spawn method of multiprocessing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from attrs import define, field

from dibs.errors import ConfigurationError
from dibs.worker.processes.app_import import is_importing_app
from dibs.worker.processes.multiprocessing_privates import (
    FRAME_HEADER,
    is_importing_main_script,
    leave_removed_folder,
)

#: Largest number of bytes that one read takes from the pipe.
_READ_SIZE: Final = 65536
#: Seconds between two reads of a child whose messages may wait, see `ChildProcess.may_wait`.
READ_PAUSE: Final = 0.02
#: Seconds without a message after which such a child is no longer polled: its next message wakes the parent.
QUIET_SECONDS: Final = 1.0
#: Size in bytes from which a read causes no pause: more of such data would fill the pipe and stop the child.
LARGE_READ: Final = 4096


class ChildProcess:
    """A child process with a pipe; the base of SpawnedProcess and ForkedProcess.

    `on_message` is called with each message of the child, in order. `on_exit` is called once, after the last
    message, with the reason as text, such as "was killed by SIGKILL".
    """

    def __init__(
        self, pipe: Connection, on_message: Callable[[bytes], None], on_exit: Callable[[str], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_message = on_message
        self._on_exit = on_exit
        self._pipe = pipe
        self._decoder = FrameDecoder()
        self._loop.add_reader(pipe.fileno(), self._on_readable)
        self._read_timer: asyncio.TimerHandle | None = None
        #: The time of the latest message, on the clock of the loop.
        self._last_message_at = 0.0
        #: True if messages of the child may wait for READ_PAUSE. A message that wakes the parent takes a CPU
        #: at the moment in which the child runs a job: with two cores it delays the job by 0.2 ms.
        self.may_wait = False
        self.alive = True
        #: The process id; 0 until the process exists.
        self.pid = 0
        #: The exit code as multiprocessing reports it, -N after signal N; None until the process has ended.
        self.exit_code: int | None = None

    def send(self, message: bytes) -> None:
        """Send a message. Drop the message if the child has ended; kill the child if its pipe is full."""
        if not self.alive:
            return
        if not select.select([], [self._pipe], [], 0)[1]:
            # The pipe holds hundreds of unread messages, so the child hangs. A blocking write would make the
            # parent hang, too.
            self.kill()
            return
        with suppress(OSError):
            self._pipe.send_bytes(message)

    def kill(self) -> None:
        """Kill the child and all processes of its group with SIGKILL. `on_exit` is called as for any exit."""
        raise NotImplementedError

    def _on_readable(self) -> None:
        size = self._read_once()
        if not size or (self.may_wait and size < LARGE_READ):
            self._loop.remove_reader(self._pipe.fileno())
            if size:
                self._last_message_at = self._loop.time()
                self._poll_later()

    def _poll_later(self) -> None:
        self._read_timer = self._loop.call_later(READ_PAUSE, self._poll)

    def _poll(self) -> None:
        """Read the messages of the last READ_PAUSE seconds, and decide when to read the next ones."""
        self._read_timer = None
        size = 0
        if self._is_readable():
            if not (size := self._read_once()):
                return  # the end of the pipe
            self._last_message_at = self._loop.time()
        if size >= LARGE_READ or self._loop.time() - self._last_message_at > QUIET_SECONDS:
            self._loop.add_reader(self._pipe.fileno(), self._on_readable)
        else:
            self._poll_later()

    def read_waiting(self) -> None:
        """Read the messages that the child has written so far, also during a pause."""
        while self.alive and self._is_readable() and self._read_once():
            self._last_message_at = self._loop.time()

    def _is_readable(self) -> bool:
        return bool(select.select([self._pipe], [], [], 0)[0])

    def _read_once(self) -> int:
        """Read the available bytes, and call `on_message` with each complete message.

        Return the number of bytes; 0 at the end of the pipe. Never wait for the rest of a message.
        """
        try:
            data = os.read(self._pipe.fileno(), _READ_SIZE)
        except OSError:
            return 0
        for message in self._decoder.decode(data):
            self._on_message(message)
        return len(data)

    def _finish_after_exit(self, code: int | None, reason: str = "") -> None:
        """Read the last messages of the ended child, close the pipe and call `on_exit`."""
        self.alive = False
        self.exit_code = code
        self._loop.remove_reader(self._pipe.fileno())
        if self._read_timer is not None:
            self._read_timer.cancel()
        while self._is_readable() and self._read_once():
            pass
        self._pipe.close()
        self._on_exit(reason or describe_exit(code))


@define
class FrameDecoder:
    """A decoder that cuts a stream of bytes into the messages of a multiprocessing Connection.

    Connection.recv_bytes would wait for the rest of a message. A child may hang, or be stopped, between the
    first and the last byte of a message, and a parent that waits for the child renews no lease.
    """

    _buffer: bytes = field(default=b"", init=False)

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Add bytes and yield the messages that are complete now."""
        self._buffer += data
        while len(self._buffer) >= FRAME_HEADER.size:
            (length,) = FRAME_HEADER.unpack_from(self._buffer)
            end = FRAME_HEADER.size + length
            if len(self._buffer) < end:
                return
            message, self._buffer = self._buffer[FRAME_HEADER.size : end], self._buffer[end:]
            yield message


def kill_process_group(pid: int) -> None:
    """Kill every process in the group that the child process `pid` leads."""
    # The child creates the group in its first steps; before that, the group does not exist.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def describe_exit(code: int | None) -> str:
    """Return how a process ended, as a predicate: "exited with code 1", "was killed by SIGSEGV"."""
    if code is None or code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


#: The multiprocessing context for child processes. With "fork", the child would get copies of locks that
#: other threads hold, and the copies are never released.
SPAWN_CONTEXT: Final = multiprocessing.get_context("spawn")
#: The multiprocessing name of every child process that dibs starts; `refuse_during_import` checks it.
PROCESS_NAME: Final = "dibs-worker"
#: The exit code of a child process whose main script tried to start workers while it was imported.
EXIT_NO_MAIN_GUARD: Final = 78
MISSING_MAIN_GUARD: Final = (
    "the script starts its worker when it is imported, and every worker process imports it: put the call "
    'that starts the worker under `if __name__ == "__main__":`'
)


class SpawnedProcess(ChildProcess):
    """A child process with a new interpreter, which calls `target(pipe, *arguments)`."""

    def __init__(
        self,
        target: Callable[..., None],
        arguments: tuple[Any, ...],
        on_message: Callable[[bytes], None],
        on_exit: Callable[[str], None],
    ) -> None:
        parent_end, child_end = SPAWN_CONTEXT.Pipe()
        leave_removed_folder()
        # Start the child on the thread of the loop: the kernel kills a child when the thread that started it
        # ends.
        self._process = SPAWN_CONTEXT.Process(target=target, args=(child_end, *arguments), name=PROCESS_NAME)
        self._process.start()
        child_end.close()
        super().__init__(parent_end, on_message, on_exit)
        self.pid = self._process.pid or 0
        self._exit_fd = _open_exit_fd(self._process)
        self._loop.add_reader(self._exit_fd, self._on_process_exit)

    def kill(self) -> None:
        if self.alive:
            kill_process_group(self.pid)
            self._process.kill()

    def _on_process_exit(self) -> None:
        self._loop.remove_reader(self._exit_fd)
        # Kill the group before join(), which frees the pid: until then no other process can have this group
        # id.
        kill_process_group(self.pid)
        self._process.join()
        if self._exit_fd != self._process.sentinel:
            os.close(self._exit_fd)
        self._finish_after_exit(self._process.exitcode)


def _open_exit_fd(process: Any) -> int:
    """Return a file descriptor that becomes readable when the process ends: a pidfd on Linux.

    Other platforms use the sentinel of multiprocessing, a pipe. It stays open as long as any process that a
    handler forked is alive.
    """
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(process.pid)
    return int(process.sentinel)


def refuse_during_import() -> None:
    """Refuse to start workers from a script that this process imports: the script has no main guard.

    `dibs worker` imports the script as an application, and so do child processes of dibs. In `dibs worker`
    raise ConfigurationError. A child process exits with EXIT_NO_MAIN_GUARD, and its parent reports the
    mistake once: the script could catch an exception, and each of N processes would print it.
    """
    if not (is_importing_app() or is_importing_main_script()):
        return
    if multiprocessing.current_process().name == PROCESS_NAME:
        os._exit(EXIT_NO_MAIN_GUARD)
    if is_importing_app():
        raise ConfigurationError(MISSING_MAIN_GUARD)
