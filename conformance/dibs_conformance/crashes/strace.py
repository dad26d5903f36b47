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
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

#: What is done to files. A name this machine's kernel does not have is passed over, for its "?".
CALLS: Final = (
    *("open", "openat", "creat", "read", "pread64", "readv", "preadv", "write", "pwrite64", "writev"),
    *("pwritev", "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "truncate", "close"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("fcntl", "flock", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "mmap"),
)
#: Seconds in which strace has to be there, or gone.
PATIENCE: Final = 60.0
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\(")


@dataclass(frozen=True)
class Asked:
    """The n-th call of this name that a thread made: the process's first one, or another."""

    name: str
    number: int
    first: bool


class NoTrace(Exception):
    """strace is not here, or may not look."""


@dataclass
class Trace:
    """What strace wrote down; it is there once nothing is traced any more."""

    process: int
    lines: list[str] = field(default_factory=list)

    def below(self, path: str) -> list[Asked]:
        """Return the calls that were about something below a path."""
        made: Counter[tuple[str, str]] = Counter()
        found = []
        for line in self.lines:
            call = _LINE.match(line)
            if call is None:
                continue
            made[call["thread"], call["name"]] += 1
            if path in line:
                number = made[call["thread"], call["name"]]
                found.append(Asked(call["name"], number, int(call["thread"]) == self.process))
        return found

    @property
    def injected(self) -> bool:
        return any("(INJECTED)" in line for line in self.lines)


@contextmanager
def traced(process: int, asked: Asked | None = None, *words: str) -> Iterator[Trace]:
    """Trace a process while this lasts: all of it, or the threads that may be asked. Raises NoTrace.

    strace counts the calls of each thread for itself. What is for a thread of the storage must not also hit
    the first thread of the process, which talks with us.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise NoTrace("strace is not installed")
    names = ",".join(f"?{name}" for name in CALLS)
    whom = [f"--attach={thread}" for thread in threads(process, asked)]
    with TemporaryDirectory() as folder:
        trace, log = Trace(process), Path(folder, "log")
        command = [strace, "-f", "-y", "-s", "256", "-o", str(log), *whom, "-e", f"trace={names}", *words]
        if asked is not None:
            command.remove("-f")
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            await_attached(tracer, len(whom))
            yield trace
        finally:
            tracer.terminate()
            tracer.communicate(timeout=PATIENCE)
            trace.lines += log.read_text("utf-8", "replace").splitlines() if log.exists() else []


def threads(process: int, asked: Asked | None) -> list[int]:
    """The threads to attach to; with the first one, strace follows the others."""
    if asked is None or asked.first:
        return [process]
    return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir() if int(task.name) != process]


def await_attached(tracer: subprocess.Popen[bytes], times: int) -> None:
    """Read what strace says until it is there, so many times."""
    assert tracer.stderr is not None  # noqa: S101 - it was asked for
    said, deadline = b"", time.monotonic() + PATIENCE
    while said.count(b"attached") < times:
        ready, _, _ = select.select([tracer.stderr], [], [], max(0.0, deadline - time.monotonic()))
        more = tracer.stderr.read1() if ready else b""  # type: ignore[attr-defined]
        if not more:
            raise NoTrace(f"strace does not trace here: {said.decode('utf-8', 'replace').strip()}")
        said += more


def instead(asked: Asked, fate: str) -> Sequence[str]:
    """Let the call have another fate: `signal=KILL` before it is made, or `error=EIO` in its place."""
    return "-e", f"inject={asked.name}:{fate}:when={asked.number}"
