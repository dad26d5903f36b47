"""CPU time of process trees, and the usage of servers."""

from __future__ import annotations

import os
from pathlib import Path

from attrs import asdict, frozen

_TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")


@frozen
class Usage:
    """The usage of a server since its start, or for each job. None: the server does not report it."""

    cpu_us: float = 0.0
    #: Commands of Redis.
    commands: float | None = None
    #: Bytes on the connections of Redis.
    bytes: float | None = None
    #: Bytes of write-ahead log of Postgres.
    wal_bytes: float | None = None

    def per_job(self, before: Usage, jobs: float) -> Usage:
        """Return the usage since `before`, divided by `jobs`."""
        then = asdict(before)
        used = {name: (now - then[name]) / jobs for name, now in asdict(self).items() if now is not None}
        return Usage(**used)


def tree_pids(root: int) -> list[int]:
    """Return a process and all its descendants. Empty if it has ended."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (words := _stat(int(entry.name))):
            parents.setdefault(int(words[1]), []).append(int(entry.name))
    found = [root] if _stat(root) else []
    for pid in found:
        found.extend(parents.get(pid, ()))
    return found


def tree_cpu_us(root: int) -> float:
    """Return the CPU time of a process and its descendants in µs, also of those that have ended."""
    ticks = 0
    for pid in tree_pids(root):
        # utime, stime, and those of the children that were waited for.
        ticks += sum(int(word) for word in (_stat(pid) or [])[11:15])
    return ticks * _TICK_US


def _stat(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name of the program, or None if the process ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()
