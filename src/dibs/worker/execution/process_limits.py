"""The limits of a worker process, and what a process uses: its memory and its file descriptors."""

from __future__ import annotations

import errno
import mmap
import os
import sys
from pathlib import Path
from typing import Final

from msgspec import Struct

if sys.platform != "win32":
    import resource


class ProcessLimits(Struct, frozen=True, kw_only=True):
    """What a worker process may use up before it ends its runs and is replaced; None is no limit."""

    #: The number of jobs that the process claims.
    max_runs: int | None = None
    #: Resident memory in bytes.
    max_memory: int | None = None


NO_LIMITS: Final = ProcessLimits()


def memory_of(pid: int) -> int | None:
    """Return the resident memory of a process in bytes; None if it has ended, or there is no /proc.

    `resource.getrusage` would return the peak, which never falls again.
    """
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (OSError, IndexError):
        return None
    return int(pages) * mmap.PAGESIZE


def most_descriptors() -> int:
    """Return the number of file descriptors that this process may have open."""
    return sys.maxsize if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def next_descriptor() -> int | None:
    """Return the number of the next file descriptor, or None if this process or system has no more.

    The kernel gives out the lowest free number, so all numbers below are in use.
    """
    try:
        number = os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise
    os.close(number)
    return number


def count_descriptors() -> int | None:
    """Return the number of open file descriptors, or None if there is none left to count them with."""
    try:
        return len(os.listdir("/dev/fd")) - 1  # noqa: PTH208 - without the descriptor of the list itself
    except OSError:
        return None
