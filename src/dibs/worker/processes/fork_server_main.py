"""The code that runs inside the fork server: the process from which worker processes are forked.

The fork server imports the modules that every worker process needs, but not the application. It opens no
file or connection and starts no thread, so a fork of it works like a new interpreter
(docs/decisions/fork-server.md).
"""

from __future__ import annotations

import errno
import gc
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import MutableSequence, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final, NoReturn, cast

from dibs.storage.registry import factory
from dibs.worker.processes import signals
from dibs.worker.processes.child_main import exit_with_parent, start_process_group, uvloop_factory
from dibs.worker.processes.child_process import kill_process_group
from dibs.worker.processes.multiprocessing_privates import prepare_process
from dibs.worker.processes.worker_main import run_worker_process

#: The format of a report to the parent, which is one packet: an event, the number of the fork (from 1), and a
#: value.
REPORT_FORMAT: Final = struct.Struct("!cqq")
#: The event "the process was forked"; the value is its process id.
FORKED: Final = b"b"
#: The event "the process could not be forked"; the value is the errno.
FORK_FAILED: Final = b"r"
#: The event "the process has ended"; the value is its exit code, -N after signal N.
EXITED: Final = b"g"
#: The request for a process, sent with FILES_PER_FORK file descriptors. Every other packet holds
#: the URL scheme of a storage to import, such as "redis".
FORK_REQUEST: Final = b"!"
FILES_PER_FORK: Final = 3


def serve(connection: int, parent: int) -> NoReturn:
    """Fork a process for each request on the socket `connection`, until the process `parent` ends."""
    exit_with_parent(parent)
    start_process_group()
    signals.leave_signals_to_parent()
    # Standard input becomes /dev/null: a worker process must not read from the terminal of the supervisor.
    with open(os.devnull, "rb") as null:  # noqa: PTH123 - a device, for its file descriptor
        os.dup2(null.fileno(), 0)
    uvloop_factory()  # imports uvloop, for the processes forked later
    _ForkServerMain(socket.socket(fileno=connection)).serve()


class _ForkServerMain:
    """The loop of the fork server: it forks a worker for each request and reports each worker that ends."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._pid = os.getpid()
        self._fork_count = 0
        self._fork_numbers: dict[int, int] = {}
        self._wakeup_read, self._wakeup_write = os.pipe()
        os.set_blocking(self._wakeup_write, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # A wakeup pipe, not a check after each select(): a process that ends just before select() begins
        # would be reported only after the next request.
        signal.set_wakeup_fd(self._wakeup_write, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        while True:
            ready, _, _ = select.select([self._socket.fileno(), self._wakeup_read], [], [])
            if self._wakeup_read in ready:
                os.read(self._wakeup_read, 4096)
                self._reap_children()
            if self._socket.fileno() in ready:
                self._handle_request()

    def _handle_request(self) -> None:
        request, files, *_ = socket.recv_fds(self._socket, 256, FILES_PER_FORK, socket.MSG_CMSG_CLOEXEC)
        if request == FORK_REQUEST:
            self._fork_worker(files)
        elif request:
            preload_storage(request.decode())
        else:
            os._exit(0)

    def _fork_worker(self, files: Sequence[int]) -> None:
        self._fork_count += 1
        gc.freeze()  # a garbage collection in the child would write to these objects, and so copy their pages
        try:
            pid = _check_files_and_fork(files)
        except OSError as error:
            self._send_report(FORK_FAILED, self._fork_count, error.errno or 0)
        else:
            if not pid:
                self._clean_up_in_child()
                run_forked_worker(*files)
            self._fork_numbers[pid] = self._fork_count
            self._send_report(FORKED, self._fork_count, pid)
        for file in files:
            os.close(file)

    def _clean_up_in_child(self) -> None:
        exit_with_parent(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._socket.close()
        os.close(self._wakeup_read)
        os.close(self._wakeup_write)

    def _reap_children(self) -> None:
        """Report every child that has ended, after killing its process group."""
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            # Before waitpid(), which frees the pid: the group id must still belong to this process.
            kill_process_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            self._send_report(EXITED, self._fork_numbers.pop(found.si_pid), os.waitstatus_to_exitcode(status))

    def _send_report(self, event: bytes, fork: int, value: int) -> None:
        with suppress(OSError):  # the parent has ended, and the kernel is about to kill this process
            self._socket.send(REPORT_FORMAT.pack(event, fork, value))


def _check_files_and_fork(files: Sequence[int]) -> int:
    if len(files) < FILES_PER_FORK:
        raise OSError(errno.EMFILE, "the fork server has no free file descriptor, so the kernel dropped some")
    return os.fork()


def preload_storage(scheme: str) -> None:
    """Import the storage of a URL scheme. Ignore an ImportError: the worker process will report it."""
    with suppress(ImportError):
        factory(scheme)


def run_forked_worker(pipe: int, started: int, order: int) -> NoReturn:
    """Turn this forked process into a worker process, and exit when the worker has ended.

    The worker gets the current environment, working directory, `sys.path` and main script of the supervisor.
    The arguments are the file descriptors that `ForkedProcess` sends.
    """
    code = 1
    try:
        with open(order, encoding="ascii") as file:
            parsed = json.load(file)
        _replace_environment(parsed["environment"])
        prepare_process(parsed["preparation"])
        run_worker_process(Connection(pipe), map_shared_array(started), bytes.fromhex(parsed["spec"]))
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(bool(error.code))
    except BaseException:  # noqa: BLE001 - prepare_process imports the user's script: print any error it raises
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _replace_environment(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()


def map_shared_array(file: int) -> MutableSequence[float]:
    """Return the shared memory behind a file descriptor as an array of doubles, and close the descriptor."""
    try:
        return cast("MutableSequence[float]", memoryview(mmap.mmap(file, 0)).cast("d"))
    finally:
        os.close(file)
