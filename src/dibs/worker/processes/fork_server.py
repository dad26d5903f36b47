"""Where a supervisor has its worker processes from: forked by a process that has imported what they need.

One such process, the stem, belongs to one supervisor, and ends with it; see docs/decisions/0016.
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
from multiprocessing import Pipe, spawn, util
from typing import Any, Final

from dibs.storage.registry import OURS
from dibs.worker.dispatch.in_flight import PLACES
from dibs.worker.processes.child_process import Offspring, kill_group, reason
from dibs.worker.processes.fork_server_main import BORN, FORK, GONE, REPORT, numbers_in, serve
from dibs.worker.processes.spawn import NAME

#: Whether there can be one: it must end with its parent whatever it does, which Linux sees to; and a frozen
#: program has no interpreter to start.
POSSIBLE: Final = sys.platform == "linux" and not getattr(sys, "frozen", False)


class Nursery:
    """Worker processes by forking, from the thread that made it; a stem that ended is replaced."""

    def __init__(self, stem: Stem | None = None) -> None:
        self._scheme = ""
        self._stem = stem or _started()

    def expect(self, scheme: str) -> None:
        """Let what storages of a scheme need be imported, if they are ours: others may do anything then."""
        self._scheme = scheme
        if scheme in OURS:
            self._stem.expect(scheme)

    def fork(
        self, spec: Callable[[int], bytes], heard: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> Forked:
        """Return a worker process that is about to begin; `spec` says what it is to be, given its parent."""
        if not self._stem.alive:
            self._stem = _started()
            self.expect(self._scheme)
        return Forked(self._stem, spec(self._stem.pid), heard, ended)

    def close(self) -> None:
        """End the stem, and with it all that it forked."""
        self._stem.close()


@contextmanager
def nursery_for(processes: int | None, ahead: Nursery | None) -> Iterator[Nursery | None]:
    """Have a nursery for a block, the one made ahead if any; None where no process is to be forked."""
    nursery = ahead or (Nursery() if POSSIBLE and processes != 0 else None)
    try:
        yield nursery
    finally:
        if nursery is not None:
            nursery.close()


def ahead(url: str) -> Nursery | None:
    """Return a nursery whose stem is a fork of this process, None where that could do harm.

    Only for a program of ours that has imported nothing of the user's yet: its stem need not import again
    what is here already, which took most of the time from the start to the first job. `url` is where the
    jobs will be, as far as it is known.
    """
    if not POSSIBLE or threading.active_count() > 1:
        return None
    nursery = Nursery(_forked_here())
    nursery.expect(url.partition(":")[0])
    return nursery


class Stem:
    """The process that forks, as its parent holds it."""

    def __init__(self, line: socket.socket, pid: int, bury: Callable[[], int]) -> None:
        self.pid = pid
        self.alive = True
        self._line = line
        # Whoever asks renews a lease, too: a stem that does not listen must not keep it waiting.
        self._line.settimeout(0)
        self._bury = bury
        self._forks = 0
        self._children: dict[int, Forked] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def expect(self, scheme: str) -> None:
        """Let it import the storage of a scheme before it forks again."""
        with suppress(OSError):  # then each worker imports by itself what it needs
            self._line.send(scheme.encode())

    def fork(self, child: Forked, files: tuple[int, int, int]) -> None:
        """Ask for a process; the child is told when it is born, when it has ended, or why it cannot be."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._line.fileno(), self._hear)
        try:
            socket.send_fds(self._line, [FORK], files)
        except OSError as error:
            self._loop.call_soon(child.refused, error.errno or 0)
        else:
            self._forks += 1
            self._children[self._forks] = child

    def _hear(self) -> None:
        try:
            report = self._line.recv(REPORT.size)
        except BlockingIOError:
            return
        except OSError:
            report = b""
        if not report:
            self.close()
            return
        word, fork, number = REPORT.unpack(report)
        if word == BORN:
            self._children[fork].born(number)
        elif word == GONE:
            self._children.pop(fork).gone(number)
        else:
            self._children.pop(fork).refused(number)

    def close(self) -> None:
        """End it. The kernel ends what it forked."""
        if not self.alive:
            return
        self.alive = False
        if self._loop is not None:
            self._loop.remove_reader(self._line.fileno())
        self._line.close()
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        why = f"could not be forked: what it was to be forked from {reason(self._bury())}"
        for child in self._children.values():
            child.orphaned(why)


class Forked(Offspring):
    """A worker process that a stem forks."""

    def __init__(
        self, stem: Stem, spec: bytes, heard: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        # The standard library's JSON: a path, or a variable, may hold what UTF-8 cannot say.
        order = json.dumps(
            {"environment": dict(os.environ), "preparation": _preparation(), "spec": spec.hex()}
        )
        ours, theirs = Pipe()
        super().__init__(ours, heard, ended)
        self._doomed = False
        shared = os.memfd_create("dibs-started")
        os.truncate(shared, 8 * PLACES)
        # A file, for it has room for every environment, and is there before it is asked for.
        with theirs, os.fdopen(os.memfd_create("dibs-order"), "w", encoding="ascii") as file:
            file.write(order)
            file.seek(0)
            stem.fork(self, (theirs.fileno(), shared, file.fileno()))
        #: One number a place in its hand, which it writes and its parent reads.
        self.started = numbers_in(shared)

    def kill(self) -> None:
        if self.pid and self.alive:
            kill_group(self.pid)
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        elif not self._doomed:
            # It has said nothing, so it has nothing in hand; should it be born yet, it ends at once.
            self._doomed = True
            self._loop.call_soon(self._end, -signal.SIGKILL)

    def born(self, pid: int) -> None:
        """It begins, under this number."""
        self.pid = pid
        if self._doomed:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def gone(self, code: int) -> None:
        """It has ended with this code."""
        self._end(code)

    def refused(self, error: int) -> None:
        """It could not be forked."""
        self._end(None, f"could not be forked: {os.strerror(error)}")

    def orphaned(self, why: str) -> None:
        """Its stem has ended, and so will it: wait for that, and if it was not born, say why."""
        if not self.pid:
            self._end(None, why)
            return
        try:
            watched = os.pidfd_open(self.pid)
        except OSError:  # it has ended, or the kernel is too old to be asked
            self._end(-signal.SIGKILL)
            return
        kill_group(self.pid)
        self._loop.add_reader(watched, self._ended_with_its_stem, watched)

    def _ended_with_its_stem(self, watched: int) -> None:
        self._loop.remove_reader(watched)
        os.close(watched)
        self._end(-signal.SIGKILL)

    def _end(self, code: int | None, why: str = "") -> None:
        if self.alive:
            self._over(code, why)


def _preparation() -> dict[str, Any]:
    """Return what multiprocessing tells a process that it spawns."""
    told = spawn.get_preparation_data(NAME)
    told["authkey"] = told["authkey"].hex()
    told["sys_path"] = [entry for entry in told["sys_path"] if isinstance(entry, str)]
    return told


def _started() -> Stem:
    """Begin a stem as an interpreter of its own: a fork of this one has locks of the user's threads."""
    ours, theirs = _pair()
    path = [entry for entry in sys.path if isinstance(entry, str)]
    code = (
        f"import sys; sys.path[:] = {path!r}; "
        f"from dibs.worker.processes.fork_server_main import serve; serve({theirs.fileno()}, {os.getpid()})"
    )
    interpreter = [os.fsdecode(spawn.get_executable()), *util._args_from_interpreter_flags()]  # type: ignore[attr-defined] # noqa: SLF001
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter
            [*interpreter, "-c", code], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
        )
    return Stem(ours, process.pid, process.wait)


def _forked_here() -> Stem:
    ours, theirs = _pair()
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if not pid:
        try:
            ours.close()
            serve(theirs.detach(), parent)
        finally:
            # Whatever went wrong: there must not be two of the program that goes on below.
            os._exit(1)
    theirs.close()
    return Stem(ours, pid, lambda: _buried(pid))


def _buried(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # whoever started us does not want to know of children, and handed that down
        return 0


def _pair() -> tuple[socket.socket, socket.socket]:
    # Whole packets: a process asked for, and a report, are never cut.
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
