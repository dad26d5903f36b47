"""strace on a process that runs: what it asks of the system below a path, and one such call that goes wrong.

Python's own calls can be counted and failed from within (races.system). Those that a library in C makes
cannot: SQLite's, say. strace sees all of them, and can answer in the kernel's place.
"""

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

#: What is done to files. A name this machine's kernel does not have is passed over, for its "?".
TRACED_CALLS: Final = (
    *("open", "openat", "creat", "read", "pread64", "readv", "preadv", "write", "pwrite64", "writev"),
    *("pwritev", "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "truncate", "close"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("fcntl", "flock", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "mmap"),
)
#: Seconds in which strace has to be there, or gone.
TIMEOUT: Final = 60.0
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\(")


@frozen
class SystemCall:
    """The n-th call of this name that a thread made: the process's first one, or another."""

    name: str
    number: int
    first: bool


class StraceUnavailable(Exception):
    """strace is not here, or may not look."""


@define
class Trace:
    """What strace wrote down; it is there once nothing is traced any more."""

    process: int
    lines: list[str] = field(factory=list)

    def calls_below(self, path: str) -> list[SystemCall]:
        """Return the calls that were about something below a path."""
        made: Counter[tuple[str, str]] = Counter()
        found = []
        for line in self.lines:
            match_ = _LINE.match(line)
            if match_ is None:
                continue
            made[match_["thread"], match_["name"]] += 1
            if path in line:
                number = made[match_["thread"], match_["name"]]
                found.append(SystemCall(match_["name"], number, int(match_["thread"]) == self.process))
        return found

    @property
    def injected(self) -> bool:
        return any("(INJECTED)" in line for line in self.lines)


@contextmanager
def trace_process(process: int, call: SystemCall | None = None, *options: str) -> Iterator[Trace]:
    """Trace a process while this lasts: all of it, or the threads that may be asked. Raises NoTrace.

    strace counts the calls of each thread for itself. What is for a thread of the storage must not also hit
    the first thread of the process, which talks with us.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise StraceUnavailable("strace is not installed")
    names = ",".join(f"?{name}" for name in TRACED_CALLS)
    targets = [f"--attach={thread}" for thread in threads(process, call)]
    with TemporaryDirectory() as folder:
        trace, log = Trace(process), Path(folder, "log")
        command = [
            strace,
            "-f",
            "-y",
            "-s",
            "256",
            "-o",
            str(log),
            *targets,
            "-e",
            f"trace={names}",
            *options,
        ]
        if call is not None:
            command.remove("-f")
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            wait_attached(tracer, len(targets))
            yield trace
        finally:
            tracer.terminate()
            tracer.communicate(timeout=TIMEOUT)
            trace.lines += log.read_text("utf-8", "replace").splitlines() if log.exists() else []


def threads(process: int, call: SystemCall | None) -> list[int]:
    """The threads to attach to; with the first one, strace follows the others."""
    if call is None or call.first:
        return [process]
    return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir() if int(task.name) != process]


def wait_attached(tracer: subprocess.Popen[bytes], times: int) -> None:
    """Read what strace says until it is there, so many times."""
    assert tracer.stderr is not None  # noqa: S101 - it was asked for
    output, deadline = b"", time.monotonic() + TIMEOUT
    while output.count(b"attached") < times:
        ready, _, _ = select.select([tracer.stderr], [], [], max(0.0, deadline - time.monotonic()))
        more = tracer.stderr.read1() if ready else b""  # type: ignore[attr-defined]
        if not more:
            raise StraceUnavailable(
                f"strace does not trace here: {output.decode('utf-8', 'replace').strip()}"
            )
        output += more


def injection(call: SystemCall, effect: str) -> Sequence[str]:
    """Let the call have another fate: `signal=KILL` before it is made, or `error=EIO` in its place."""
    return "-e", f"inject={call.name}:{effect}:when={call.number}"
