"""The plan of one call of `run`: its queues, number of processes, and reference to the application."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Final, get_args

from attrs import evolve, field, frozen

from dibs.client.app import Dibs, Until
from dibs.client.options.durations import Seconds, duration_seconds
from dibs.errors import ConfigurationError, Refused, UnknownTask
from dibs.model.check_arguments import check_choice, check_not_one_text
from dibs.model.check_values import check_text, check_whole_number
from dibs.model.job import FAIL_SUFFIX
from dibs.model.limits import LIMITS
from dibs.storage.protocol import Storage
from dibs.worker.processes.app_import import check_threads, find_reference

#: The most worker processes of one call of `run`.
MOST_PROCESSES: Final = 10_000


def default_name() -> str:
    """Return the name of a worker without `name`: its host and the id of the supervisor's process."""
    return f"{socket.gethostname()}:{os.getpid()}"


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
    grace: float = 30.0
    #: The holder of the leases, a name for people.
    name: str = field(factory=default_name)


def make_plan(
    app: Dibs,
    queues: Sequence[str] | None,
    processes: int | None,
    reference: str,
    times: Mapping[str, float],
    name: str | None = None,
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
        name=default_name() if name is None else name,
        **times,
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


def check_arguments(until: Until, processes: int | None, times: Mapping[str, Seconds]) -> dict[str, float]:
    """Return `times` in seconds. Raise Refused for an argument of `run` that is not allowed."""
    check_choice("until", until, get_args(Until))
    if processes is not None:
        check_whole_number("processes", processes, 0, MOST_PROCESSES)
    seconds = {name: read_seconds(name, time, may_be_zero=name == "grace") for name, time in times.items()}
    check_heartbeat(seconds["lease"], seconds["heartbeat"])
    return seconds


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


def cpu_count() -> int:
    """Return the number of CPUs this process may use. On Linux, CPU affinity may exclude some."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def add_reference(app: Dibs, plan: WorkPlan) -> WorkPlan:
    """Return the plan, with a reference such as "shop.jobs:app" if a child process must import the app.

    Raise ConfigurationError if no module holds the application.
    """
    isolated = any(app.handlers[queue].executor == "process" for queue in plan.queues)
    if plan.reference or not (plan.processes or isolated):
        return plan
    return evolve(plan, reference=find_reference(app))
