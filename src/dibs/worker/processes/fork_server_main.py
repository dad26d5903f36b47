"""The process that worker processes are forked from, seen from inside.

It has imported what they all need and nothing of the user's, opens nothing and starts no thread, so that a
fork of it is as good as a new interpreter (docs/decisions/0016).
"""

from __future__ import annotations

import errno
import gc
import json
import mmap
import multiprocessing
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import MutableSequence, Sequence
from contextlib import suppress
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any, Final, NoReturn, cast

from dibs.storage.registry import factory
from dibs.worker.processes import signals
from dibs.worker.processes.child_main import die_with, lead_a_group, quick_loop
from dibs.worker.processes.child_process import kill_group
from dibs.worker.processes.worker_main import work_here

#: What it tells its parent: a word, which fork it is about, counted from 1, and a number. In one packet.
REPORT: Final = struct.Struct("!cqq")
#: It was forked, and the number is its process id.
BORN: Final = b"b"
#: It could not be forked; the number is the system's error.
REFUSED: Final = b"r"
#: It has ended; the number is its exit code, as multiprocessing has it.
GONE: Final = b"g"
#: What its parent asks for: a process, with its three files. Any other word is a scheme whose storage will be
#: needed.
FORK: Final = b"!"
FILES: Final = 3


def serve(line: int, parent: int) -> NoReturn:
    """Fork a process each time the parent asks for one, until it is gone."""
    die_with(parent)
    lead_a_group()
    signals.leave_to_the_parent()
    # A worker has nothing to read there, and the terminal is not its own.
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a device, for its number
        os.dup2(nothing.fileno(), 0)
    quick_loop()
    _Stem(socket.socket(fileno=line)).serve()


class _Stem:
    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._pid = os.getpid()
        self._forks = 0
        self._numbers: dict[int, int] = {}
        self._woken, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Not a look after each call: one that ends just before the wait begins would be heard with the next.
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)

    def serve(self) -> NoReturn:
        while True:
            ready, _, _ = select.select([self._line.fileno(), self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 4096)
                self._bury()
            if self._line.fileno() in ready:
                self._hear()

    def _hear(self) -> None:
        word, files, *_ = socket.recv_fds(self._line, 256, FILES, socket.MSG_CMSG_CLOEXEC)
        if word == FORK:
            self._fork(files)
        elif word:
            expect(word.decode())
        else:
            os._exit(0)

    def _fork(self, files: Sequence[int]) -> None:
        self._forks += 1
        gc.freeze()  # what is here stays, and a collection in the child would copy the pages it is on
        try:
            pid = _forked(files)
        except OSError as error:
            self._tell(REFUSED, self._forks, error.errno or 0)
        else:
            if not pid:
                self._leave_to_the_child()
                live(*files)
            self._numbers[pid] = self._forks
            self._tell(BORN, self._forks, pid)
        for file in files:
            os.close(file)

    def _leave_to_the_child(self) -> None:
        die_with(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._line.close()
        os.close(self._woken)
        os.close(self._waker)

    def _bury(self) -> None:
        while True:
            try:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            # Before its number is free for others: what its handlers had started ends with it.
            kill_group(found.si_pid)
            _, status = os.waitpid(found.si_pid, 0)
            self._tell(GONE, self._numbers.pop(found.si_pid), os.waitstatus_to_exitcode(status))

    def _tell(self, word: bytes, fork: int, number: int) -> None:
        with suppress(OSError):  # the parent is gone, and the kernel is about to end this process
            self._line.send(REPORT.pack(word, fork, number))


def _forked(files: Sequence[int]) -> int:
    if len(files) < FILES:
        raise OSError(errno.EMFILE, "the kernel drops files that this process has no number for")
    return os.fork()


def expect(scheme: str) -> None:
    """Import the storage of a scheme."""
    with suppress(ImportError):  # the worker says what is missing
        factory(scheme)


def live(pipe: int, started: int, order: int) -> NoReturn:
    """Be a worker process, as if begun anew by the parent as it is now: its environment, folder and path."""
    code = 1
    try:
        with open(order, encoding="ascii") as file:
            told = json.load(file)
        _be_as(told["environment"])
        _prepare(told["preparation"])
        work_here(Connection(pipe), numbers_in(started), bytes.fromhex(told["spec"]))
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:  # noqa: BLE001 - the user's script, imported anew: shown as an interpreter shows it
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _be_as(environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()


def _prepare(preparation: dict[str, Any]) -> None:
    """Do what multiprocessing does in a process that it spawned: among the rest, import the user's script."""
    preparation["authkey"] = bytes.fromhex(preparation["authkey"])
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # noqa: SLF001 - by which multiprocessing, and we, know that moment
    try:
        spawn.prepare(preparation)
    finally:
        del process._inheriting  # noqa: SLF001


def numbers_in(file: int) -> MutableSequence[float]:
    """Return the shared memory of a file as an array of doubles, and close the file."""
    try:
        return cast("MutableSequence[float]", memoryview(mmap.mmap(file, 0)).cast("d"))
    finally:
        os.close(file)
