"""strace on a client process: a list of its system calls on files, and faults injected into one of them."""

from __future__ import annotations

import re
import select
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import define, field, frozen

#: System calls on files. strace ignores a name unknown to this kernel, because of its "?".
TRACED_CALLS: Final = (
    *("open", "openat", "creat", "read", "pread64", "readv", "preadv", "write", "pwrite64", "writev"),
    *("pwritev", "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "truncate", "close"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("fcntl", "flock", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "mmap"),
    *("symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "utimensat"),
)
#: Seconds in which strace must attach, or exit.
TIMEOUT: Final = 60.0
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\(")


@frozen
class SystemCall:
    """The n-th call of this name in a thread: the main thread of the process, or another."""

    name: str
    number: int
    first: bool


class StraceUnavailable(Exception):
    """strace is not installed, or may not trace."""


@define
class Trace:
    """The output of strace. It is complete after the tracing has ended."""

    process: int
    lines: list[str] = field(factory=list)

    def calls_below(self, path: str) -> list[SystemCall]:
        """Return the traced calls whose line names a file below `path`."""
        made: Counter[tuple[str, str]] = Counter()
        found = []
        for line in self.lines:
            match = _LINE.match(line)
            if match is None:
                continue
            made[match["thread"], match["name"]] += 1
            if path in line:
                number = made[match["thread"], match["name"]]
                found.append(SystemCall(match["name"], number, int(match["thread"]) == self.process))
        return found

    @property
    def injected(self) -> bool:
        return any("(INJECTED)" in line for line in self.lines)


@contextmanager
def trace_process(process: int, call: SystemCall | None = None, *options: str) -> Iterator[Trace]:
    """Trace a process while the context lasts. With `call`, trace only the threads that may make it.

    Raises StraceUnavailable.

    strace counts the calls of each thread separately. An injection for a thread of the storage must not
    hit the main thread, which talks to the parent.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise StraceUnavailable("strace is not installed")
    names = ",".join(f"?{name}" for name in TRACED_CALLS)
    targets = [f"--attach={thread}" for thread in threads_to_attach(process, call)]
    with TemporaryDirectory() as folder:
        trace, log = Trace(process), Path(folder, "log")
        follow = ["-f"] if call is None else []
        output = ["-y", "-s", "256", "-o", str(log), "-e", f"trace={names}"]
        command = [strace, *follow, *output, *targets, *options]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            wait_attached(tracer, len(targets))
            yield trace
        finally:
            tracer.terminate()
            tracer.communicate(timeout=TIMEOUT)
            trace.lines += log.read_text("utf-8", "replace").splitlines() if log.exists() else []


def threads_to_attach(process: int, call: SystemCall | None) -> list[int]:
    """Return the ids of the threads to attach to. From the main thread, strace follows the others."""
    if call is None or call.first:
        return [process]
    return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir() if int(task.name) != process]


def wait_attached(tracer: subprocess.Popen[bytes], times: int) -> None:
    """Read the output of strace until it has attached to this number of threads."""
    assert tracer.stderr is not None  # noqa: S101 - Popen got stderr=PIPE
    output, deadline = b"", time.monotonic() + TIMEOUT
    while output.count(b"attached") < times:
        ready, _, _ = select.select([tracer.stderr], [], [], max(0.0, deadline - time.monotonic()))
        more = tracer.stderr.read1() if ready else b""  # type: ignore[attr-defined]
        if not more:
            raise StraceUnavailable(f"strace cannot trace here: {output.decode('utf-8', 'replace').strip()}")
        output += more


def injection_options(call: SystemCall, effect: str) -> Sequence[str]:
    """Return the strace options that apply an effect to one system call.

    `signal=KILL` kills the process before the call. `error=EIO` fails the call without making it.
    """
    return "-e", f"inject={call.name}:{effect}:when={call.number}"
