"""The plan of one call of `run`: its queues, number of processes, and reference to the application. The
number of CPUs that a process may use follows from its affinity and the CPU quota of its cgroups.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, get_args

from attrs import evolve, field, frozen

from dibs.app import Dibs, Until
from dibs.client.options.arguments import DEFAULT_GRACE, Seconds, duration_seconds
from dibs.errors import ConfigurationError, Refused, UnknownTask
from dibs.model.check_arguments import check_choice, check_not_one_text
from dibs.model.check_values import check_text, check_whole_number
from dibs.model.job import FAIL_SUFFIX
from dibs.model.limits import LIMITS
from dibs.storage.protocol import Storage
from dibs.worker.execution.process_limits import NO_LIMITS, ProcessLimits, memory_of
from dibs.worker.processes.app_import import check_threads, find_reference


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


#: The most worker processes of one call of `run`.
MOST_PROCESSES: Final = 10_000
#: The largest `max_runs`, and the largest `max_memory` in MB.
MOST_RUNS: Final = 1_000_000_000
MOST_MEMORY: Final = 100_000_000
#: Heartbeats during a lease if only the lease is set.
HEARTBEATS: Final = 3


def default_name() -> str:
    """Return a name for a worker without `name`: its host, the id of the supervisor's process, and a number.

    The random number makes it unique: two containers may have the same host name, and the process id 1.
    """
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"


@frozen(kw_only=True)
class WorkPlan:
    """The settings of a supervisor; all times are in seconds."""

    queues: tuple[str, ...]
    #: The number of worker processes; 0 to work in the supervisor's own process.
    processes: int
    #: The application, as "module:name"; empty if no child process needs to import it.
    reference: str
    #: The time after which a lease expires without a renewal.
    lease: float
    #: The time between two renewals of the lease.
    heartbeat: float
    #: The time between two checks of a queue for jobs, for storages that do not push wake-ups.
    poll: float
    #: The time that runs have to finish after a stop signal, or in a process that is being replaced.
    grace: float = DEFAULT_GRACE
    #: The holder of the leases, a name for people.
    name: str = field(factory=default_name)
    #: When a worker process ends its runs and is replaced.
    limits: ProcessLimits = NO_LIMITS


def make_plan(
    app: Dibs,
    queues: Sequence[str] | None,
    processes: int | None,
    reference: str,
    times: Mapping[str, float],
    name: str | None = None,
    *,
    limits: ProcessLimits = NO_LIMITS,
) -> WorkPlan:
    """Return the plan for an open application. Raise UnknownTask, ConfigurationError or Refused.

    `times` are the fields lease, heartbeat, poll and grace of the plan, in seconds.
    """
    check_threads()
    if name is not None:
        check_text("name", name, LIMITS.id)
    plan = WorkPlan(
        queues=queues_to_serve(app, queues),
        processes=process_count(processes, app.storage),
        reference=reference,
        limits=limits,
        name=default_name() if name is None else name,
        **times,
    )
    if limits != NO_LIMITS and not plan.processes:
        raise ConfigurationError(
            "max_runs and max_memory replace worker processes, and this worker has none: set processes to 1 "
            "or more, with a storage that processes can share"
        )
    app.handlers.check_hints(plan.queues)
    return add_reference(app, plan)


def queues_to_serve(app: Dibs, queues: Sequence[str] | None) -> tuple[str, ...]:
    """Return `queues` and their fail queues; None means all queues with a handler.

    A fail queue, such as `emails!fail`, runs the failure handler for the failed jobs of `emails`.

    Raise UnknownTask if a queue has no handler, ConfigurationError if there is no queue.
    """
    if queues is None:
        queues = tuple(app.handlers)
    check_not_one_text("queues", queues)
    for queue in queues:
        if queue not in app.handlers:
            raise UnknownTask(
                f"queue {queue!r} has no handler; there are {', '.join(app.handlers) or 'none'}"
            )
    if not queues:
        raise ConfigurationError("there is no handler to run: declare one with @app.task or @queue.handler")
    fail_queues = [queue + FAIL_SUFFIX for queue in queues if queue + FAIL_SUFFIX in app.handlers]
    return tuple(dict.fromkeys((*queues, *fail_queues)))


def check_arguments(
    until: Until, processes: int | None, times: Mapping[str, Seconds | None]
) -> dict[str, float]:
    """Return `times` in seconds. Raise Refused for an argument of `run` that is not allowed.

    A heartbeat of None becomes a part of the lease.
    """
    check_choice("until", until, get_args(Until))
    if processes is not None:
        check_whole_number("processes", processes, 0, MOST_PROCESSES)
    seconds = {
        name: read_seconds(name, time, may_be_zero=name == "grace")
        for name, time in times.items()
        if time is not None
    }
    seconds.setdefault("heartbeat", seconds["lease"] / HEARTBEATS)
    check_heartbeat(seconds["lease"], seconds["heartbeat"])
    return seconds


def make_process_limits(max_runs: int | None, max_memory: float | None) -> ProcessLimits:
    """Return the limits of a worker process; `max_memory` is in MB. Raise Refused or ConfigurationError."""
    if max_runs is not None:
        check_whole_number("max_runs", max_runs, 1, MOST_RUNS)
    if max_memory is None:
        return ProcessLimits(max_runs=max_runs)
    is_number = isinstance(max_memory, int | float) and not isinstance(max_memory, bool)
    if not is_number or not 0 < max_memory <= MOST_MEMORY:
        raise Refused(
            f"max_memory is {max_memory!r:.80}; it must be a number of MB above 0, at most {MOST_MEMORY:,}",
            field="max_memory",
        )
    if memory_of(os.getpid()) is None:
        raise ConfigurationError("max_memory reads /proc, which this system does not have: leave it out")
    return ProcessLimits(max_runs=max_runs, max_memory=round(max_memory * 1_000_000))


def read_seconds(field: str, duration: Seconds, *, may_be_zero: bool) -> float:
    """Return a duration in seconds. Raise Refused unless it is above 0, or 0 with `may_be_zero`."""
    seconds = duration_seconds(field, duration)
    if seconds < 0 or (seconds == 0 and not may_be_zero):
        least = "0 or more" if may_be_zero else "more than 0"
        raise Refused(f"{field} is {duration}; it must be {least} seconds", field=field)
    return seconds


def check_heartbeat(lease: float, heartbeat: float) -> None:
    """Raise ConfigurationError unless the heartbeat, in seconds, is shorter than the lease."""
    if heartbeat >= lease:
        raise ConfigurationError(
            f"heartbeat is {heartbeat:g} s and lease {lease:g} s: the heartbeat must be shorter than the "
            "lease"
        )


def process_count(processes: int | None, storage: Storage) -> int:
    """Return the number of worker processes: `processes`, or one for each CPU if it is None.

    Return 0 for a storage that processes cannot share. Raise ConfigurationError if `processes` asks for more.
    """
    if storage.capabilities.shared:
        return cpu_count() if processes is None else processes
    if processes:
        raise ConfigurationError(
            f"{storage.url} exists in this process only, so worker processes cannot reach it: use processes=0"
        )
    return 0


def add_reference(app: Dibs, plan: WorkPlan) -> WorkPlan:
    """Return the plan, with a reference such as "shop.jobs:app" if a child process must import the app.

    Raise ConfigurationError if no module holds the application.
    """
    isolated = any(app.handlers[queue].executor == "process" for queue in plan.queues)
    if plan.reference or not (plan.processes or isolated):
        return plan
    return evolve(plan, reference=find_reference(app))
