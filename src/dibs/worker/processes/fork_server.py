"""The supervisor's side of its fork server: a process from which worker processes are forked.

Each supervisor has one fork server, which ends with the supervisor (docs/decisions/fork-server.md).
fork_server_main.py holds the code that runs inside the fork server.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import Final

from msgspec.structs import replace

from dibs.storage.registry import BUILT_IN
from dibs.worker.dispatch.in_flight import MAX_IN_FLIGHT
from dibs.worker.processes.child_main import ProcessSpec, encode_spec
from dibs.worker.processes.child_process import PROCESS_NAME, ChildProcess, describe_exit, kill_process_group
from dibs.worker.processes.fork_server_main import (
    EXITED,
    FORK_REQUEST,
    FORKED,
    REPORT_FORMAT,
    map_shared_array,
    serve,
)
from dibs.worker.processes.multiprocessing_privates import interpreter_command, preparation_data

#: True if this platform can have a fork server. Linux only: its kernel kills the fork server when the parent
#: ends, even if the fork server hangs. A frozen program has no interpreter to start.
SUPPORTED: Final = sys.platform == "linux" and not getattr(sys, "frozen", False)


class ForkServer:
    """A source of forked worker processes. If the fork server process has ended, `fork` starts another.

    All calls must come from the thread that created the object: the kernel ends the fork server process
    together with that thread.
    """

    def __init__(self, process: ForkServerProcess | None = None) -> None:
        self._scheme = ""
        self._process = process or _start_fork_server()

    def preload(self, scheme: str) -> None:
        """Import the storage of a URL scheme before the next fork, if the storage is part of dibs.

        A storage of another package is not imported: its import may start threads or open connections, which
        do not survive a fork.
        """
        self._scheme = scheme
        if scheme in BUILT_IN:
            self._process.preload(scheme)

    def fork(
        self, spec: ProcessSpec, on_message: Callable[[bytes], None], on_exit: Callable[[str], None]
    ) -> ForkedProcess:
        """Return a worker process that is about to start; `spec.parent` becomes the fork server."""
        if not self._process.alive:
            self._process = _start_fork_server()
            self.preload(self._scheme)
        spec = replace(spec, parent=self._process.pid)
        return ForkedProcess(self._process, encode_spec(spec), on_message, on_exit)

    def close(self) -> None:
        """Kill the fork server. The kernel then kills every process that it forked."""
        self._process.close()


@contextmanager
def open_fork_server(processes: int | None, early: ForkServer | None) -> Iterator[ForkServer | None]:
    """Yield a fork server for the block: `early` if it is given, else a new one. Close it at the end.

    Yield None if the platform has no fork server, or `processes` is 0.
    """
    fork_server = early or (ForkServer() if SUPPORTED and processes != 0 else None)
    try:
        yield fork_server
    finally:
        if fork_server is not None:
            fork_server.close()


def start_fork_server_early(url: str) -> ForkServer | None:
    """Return a fork server that is a fork of this process; None if this process has other threads.

    The command line calls it before it imports the application: this fork server need not import dibs again,
    which took most of the time from the start to the first job. `url` is the storage URL, or "" if it is not
    known yet.
    """
    if not SUPPORTED or threading.active_count() > 1:
        return None
    fork_server = ForkServer(_fork_this_process())
    fork_server.preload(url.partition(":")[0])
    return fork_server


class ForkServerProcess:
    """The running fork server process and the socket to it.

    `wait` is called after the process was killed; it waits for the exit and returns the exit code.
    """

    def __init__(self, connection: socket.socket, pid: int, wait: Callable[[], int]) -> None:
        self.pid = pid
        self.alive = True
        self._socket = connection
        # Non-blocking: the supervisor also renews leases, so a hung fork server must not block it.
        self._socket.settimeout(0)
        self._wait = wait
        self._fork_count = 0
        self._children: dict[int, ForkedProcess] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def preload(self, scheme: str) -> None:
        """Ask the process to import the storage of a scheme before it forks again."""
        with suppress(OSError):  # if it fails, each worker process imports the storage itself
            self._socket.send(scheme.encode())

    def fork(self, child: ForkedProcess, files: tuple[int, int, int]) -> None:
        """Ask for a worker process. Its events are reported to the `on_...` methods of `child`.

        `files` are the file descriptors of the three files that `ForkedProcess` describes.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._socket.fileno(), self._on_readable)
        try:
            socket.send_fds(self._socket, [FORK_REQUEST], files)
        except OSError as error:
            self._loop.call_soon(child.on_fork_failed, error.errno or 0)
        else:
            self._fork_count += 1
            self._children[self._fork_count] = child

    def _on_readable(self) -> None:
        try:
            report = self._socket.recv(REPORT_FORMAT.size)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        if not report:
            self.close()
            return
        event, fork, number = REPORT_FORMAT.unpack(report)
        if event == FORKED:
            self._children[fork].on_forked(number)
        elif event == EXITED:
            self._children.pop(fork).on_exited(number)
        else:
            self._children.pop(fork).on_fork_failed(number)

    def close(self) -> None:
        """Kill the fork server process, and call `on_fork_server_exited` of each process it forked."""
        if not self.alive:
            return
        self.alive = False
        if self._loop is not None:
            self._loop.remove_reader(self._socket.fileno())
        self._socket.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        reason = f"could not be forked: its fork server {describe_exit(self._wait())}"
        for child in self._children.values():
            child.on_fork_server_exited(reason)


class ForkedProcess(ChildProcess):
    """A worker process that is forked by the fork server.

    The child gets three files: its end of the pipe; shared memory for `started`; and an order in JSON, which
    holds the environment, the preparation data of multiprocessing, and the ProcessSpec.
    """

    def __init__(
        self,
        fork_server: ForkServerProcess,
        spec: bytes,
        on_message: Callable[[bytes], None],
        on_exit: Callable[[str], None],
    ) -> None:
        # The json module, not msgspec: a path or an environment variable may hold text that is not UTF-8.
        order = json.dumps(
            {
                "environment": dict(os.environ),
                "preparation": preparation_data(PROCESS_NAME),
                "spec": spec.hex(),
            }
        )
        parent_end, child_end = Pipe()
        super().__init__(parent_end, on_message, on_exit)
        self._killed_before_fork = False
        shared = os.memfd_create("dibs-started")
        os.truncate(shared, 8 * MAX_IN_FLIGHT)
        # A file, not a message: an environment of any size fits, and all of it is there before the fork.
        with child_end, os.fdopen(os.memfd_create("dibs-order"), "w", encoding="ascii") as file:
            file.write(order)
            file.seek(0)
            fork_server.fork(self, (child_end.fileno(), shared, file.fileno()))
        #: One number for each run the process can hold: the start time of its handler, or 0. The process
        #: writes it, the supervisor reads it.
        self.started = map_shared_array(shared)

    def kill(self) -> None:
        if self.pid and self.alive:
            kill_process_group(self.pid)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        elif not self._killed_before_fork:
            # The process has sent no message, so it holds no job. If it is forked later, on_forked kills it.
            self._killed_before_fork = True
            self._loop.call_soon(self._finish_once, -signal.SIGKILL)

    def on_forked(self, pid: int) -> None:
        """Record the process id; kill the process if `kill` came before it was forked."""
        self.pid = pid
        if self._killed_before_fork:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def on_exited(self, code: int) -> None:
        """Finish with the exit code that the fork server reported."""
        self._finish_once(code)

    def on_fork_failed(self, error: int) -> None:
        """Finish with an error: the process could not be forked because of this errno."""
        self._finish_once(None, f"could not be forked: {os.strerror(error)}")

    def on_fork_server_exited(self, reason: str) -> None:
        """Finish as soon as this process has ended, too; at once, with `reason`, if it was not forked yet."""
        if not self.pid:
            self._finish_once(None, reason)
            return
        try:
            pidfd = os.pidfd_open(self.pid)
        except OSError:  # the process has ended, or the kernel is older than pidfd_open
            self._finish_once(-signal.SIGKILL)
            return
        kill_process_group(self.pid)
        self._loop.add_reader(pidfd, self._on_killed_with_fork_server, pidfd)

    def _on_killed_with_fork_server(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        self._finish_once(-signal.SIGKILL)

    def _finish_once(self, code: int | None, reason: str = "") -> None:
        if self.alive:
            self._finish_after_exit(code, reason)


def _start_fork_server() -> ForkServerProcess:
    """Start a fork server as a new interpreter.

    A fork of this process would copy locks that threads of the user hold, and never release them.
    """
    parent_end, child_end = _socket_pair()
    path = [entry for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; "
        f"from dibs.worker.processes.fork_server_main import serve; "
        f"serve({child_end.fileno()}, {os.getpid()})"
    )
    with child_end:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*interpreter_command(), "-c", code], stdin=subprocess.DEVNULL, pass_fds=[child_end.fileno()]
        )
    return ForkServerProcess(parent_end, process.pid, process.wait)


def _fork_this_process() -> ForkServerProcess:
    parent_end, child_end = _socket_pair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            parent_end.close()
            serve(child_end.detach(), parent)
        finally:
            # After any error: the child must never run the rest of the parent's program.
            os._exit(1)
    child_end.close()
    return ForkServerProcess(parent_end, pid, lambda: _wait_for_exit_code(pid))


def _wait_for_exit_code(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the program that started this one set SIGCHLD to SIG_IGN, which is inherited
        return 0


def _socket_pair() -> tuple[socket.socket, socket.socket]:
    # SOCK_SEQPACKET keeps packets whole: a request for a process and a report are never split.
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
