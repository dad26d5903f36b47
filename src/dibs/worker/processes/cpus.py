"""The number of CPUs that a process may use, by its affinity and the CPU quota of its cgroups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath


def cpu_count() -> int:
    """Return the number of CPUs this process may use, at least 1.

    It is the smallest of: the CPUs of the machine; on Linux, those that the CPU affinity allows; and the
    quota of the cgroups, rounded up, as of `docker run --cpus` or of a Kubernetes limit.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quotas = read_quotas(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))
    return max(1, math.ceil(min([cpus, *quotas])))


def read_quotas(memberships: Path, mount: Path) -> Iterator[float]:
    """Yield the quota in CPUs of each cgroup above this process that has one.

    `memberships` lists the cgroups of the process, and `mount` is the folder of all cgroups. In a container
    the path of the list may not exist below `mount`, which then holds the cgroup of the container itself.
    """
    try:
        lines = memberships.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root = mount
        elif "cpu" in controllers.split(","):  # version 1
            root = mount / controllers
        else:
            continue
        inner = PurePosixPath(path.lstrip("/"))
        for folder in (inner, *inner.parents):
            with suppress(OSError, ValueError, IndexError, ZeroDivisionError):
                yield _read_quota(root / folder)


def _read_quota(folder: Path) -> float:
    """Return the quota of a cgroup in CPUs. Raise OSError, or ValueError for a cgroup without a limit."""
    if (limits := folder / "cpu.max").exists():
        quota, period = limits.read_text().split()
    else:
        quota, period = (folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text()
    if quota == "max" or int(quota) < 0:
        raise ValueError(quota)
    return int(quota) / int(period)
