"""How one call of work is to go about it: which queues, in how many processes, how they find the app."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from dibs.client.app import Dibs
from dibs.errors import ConfigurationError, UnknownTask
from dibs.model.job import FAIL_SUFFIX
from dibs.storage.protocol import Storage
from dibs.worker.processes.app_import import locate


class Plan(Struct, frozen=True, kw_only=True):
    """How a supervisor is to work; times in seconds."""

    queues: tuple[str, ...]
    #: 0: in this process.
    processes: int
    #: The application, as "module:name"; empty where no process needs to find it.
    reference: str
    lease: float
    heartbeat: float
    poll: float
    grace: float = 30.0


def planned(
    app: Dibs, queues: Sequence[str] | None, processes: int | None, reference: str, times: Mapping[str, float]
) -> Plan:
    """Return the plan for an open application. Raises UnknownTask, ConfigurationError."""
    plan = Plan(
        queues=served(app, queues), processes=number_of(processes, app.storage), reference=reference, **times
    )
    return located(app, plan)


def served(app: Dibs, queues: Sequence[str] | None) -> tuple[str, ...]:
    """Return the queues to serve, with their fail queues. Raises UnknownTask, ConfigurationError."""
    if queues is None:
        queues = tuple(app.handlers)
    for queue in queues:
        if queue not in app.handlers:
            raise UnknownTask(
                f"queue {queue!r} has no handler; there are {', '.join(app.handlers) or 'none'}"
            )
    if not queues:
        raise ConfigurationError("there is no handler to run: declare one with @app.task or @queue.handler")
    failing = [queue + FAIL_SUFFIX for queue in queues if queue + FAIL_SUFFIX in app.handlers]
    return tuple(dict.fromkeys((*queues, *failing)))


def check_pulse(lease: float, heartbeat: float) -> None:
    """Refuse a heartbeat that would come too late. Raises ConfigurationError."""
    if not 0 < heartbeat < lease:
        raise ConfigurationError(f"heartbeat is {heartbeat:g} s and lease {lease:g} s: renew before it ends")


def number_of(processes: int | None, storage: Storage) -> int:
    """Return in how many processes to work. Raises ConfigurationError."""
    if storage.capabilities.shared:
        return max(0, cpus() if processes is None else processes)
    if processes:
        raise ConfigurationError(
            f"{storage.url} lives in this process alone, others cannot work on it: use processes=0"
        )
    return 0


def cpus() -> int:
    """Return how many CPUs this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def located(app: Dibs, plan: Plan) -> Plan:
    """Say where processes find the application, if any will look for it."""
    solitary = any(app.handlers[queue].executor == "process" for queue in plan.queues)
    if plan.reference or not (plan.processes or solitary):
        return plan
    return replace(plan, reference=locate(app))
