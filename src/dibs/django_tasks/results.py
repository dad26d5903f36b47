"""Django's TaskResult, made from an enqueue, a run, or the status of a job."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType
from typing import Any, Final

from dibs.client.calls.current_job import CurrentJob
from dibs.client.calls.handler import Ending
from dibs.client.status import Status
from dibs.django_tasks import api
from dibs.errors import JobFailed
from dibs.model.job import Error

_STATES: Final = {
    "waiting": "READY",
    "blocked": "READY",
    "active": "RUNNING",
    "handed_off": "RUNNING",
    "completed": "SUCCESSFUL",
    "failed": "FAILED",
    "cancelled": "FAILED",
}
#: Names that dibs gives to ends without an exception of the handler, and Django's class for the same.
_CLASSES: Final = {"ResultNotSerializable": "builtins.TypeError", "StartTimeout": "builtins.TimeoutError"}


def result_id(queue: str, id: str) -> str:
    """Return the id of a result, which names the queue and the job."""
    return f"{queue}/{id}"


def split_result_id(id: str) -> tuple[str, str]:
    """Return the queue and the id of the job. Raises TaskResultDoesNotExist for another form."""
    queue, slash, job = id.rpartition("/")
    if not slash or not queue or not job:
        raise api.TaskResultDoesNotExist(id)
    return queue, job


def enqueued_result(task: Any, id: str, data: Mapping[str, Any], at: datetime | None) -> Any:
    """Return the result of a task that was enqueued at `at`, or waits for a commit if `at` is None."""
    return _build(task, id, "READY", data, enqueued_at=at)


def running_result(task: Any, job: CurrentJob, data: Mapping[str, Any]) -> Any:
    """Return the result of a task that runs now."""
    now = datetime.now(UTC)
    return _build(
        replace(task, queue_name=job.queue),
        result_id(job.queue, job.id),
        "RUNNING",
        data,
        enqueued_at=job.enqueued_at,
        started_at=now,
        last_attempted_at=now,
        worker_ids=[""] * job.attempt,
    )


def ended_result(task: Any, ending: Ending, data: Mapping[str, Any]) -> Any:
    """Return the result of a task whose last run ends now."""
    now = datetime.now(UTC)
    return _build(
        replace(task, queue_name=ending.queue),
        result_id(ending.queue, ending.id),
        _STATES[ending.kind],
        data,
        finished_at=now,
        last_attempted_at=now,
        errors=_errors(ending.error),
        worker_ids=[""] * ending.attempt,
        value=ending.result,
    )


def stored_result(task: Any, status: Status) -> Any:
    future = status.run_at is not None and status.claimed_at is None and status.run_at > datetime.now(UTC)
    return _build(
        replace(
            task,
            queue_name=status.queue,
            priority=status.priority,
            run_after=status.run_at if future else None,
        ),
        result_id(status.queue, status.id),
        _STATES[status.state],
        status.data,
        enqueued_at=status.enqueued_at,
        started_at=status.claimed_at,
        last_attempted_at=status.claimed_at,
        finished_at=status.ended_at,
        errors=_errors(status.error),
        # dibs stores the number of claims and the holder of the latest one.
        worker_ids=[status.holder] * status.attempts,
        value=status.result,
    )


def _build(task: Any, id: str, state: str, data: Mapping[str, Any], value: Any = None, **fields: Any) -> Any:
    times = dict.fromkeys(("enqueued_at", "started_at", "finished_at", "last_attempted_at"))
    result = api.TaskResult(
        task=task,
        id=id,
        status=api.TaskResultStatus(state),
        args=list(data["args"]),
        kwargs=dict(data["kwargs"]),
        backend=task.backend,
        **{**times, "errors": [], "worker_ids": [], **fields},
    )
    # The class is frozen and takes no value; the backends of Django set the field in this way.
    object.__setattr__(result, "_return_value", value)
    return result


def _errors(error: Error | None) -> list[Any]:
    """Return an error as the list that Django expects, with the full path of its class."""
    if error is None:
        return []
    return [
        StoredTaskError(
            exception_class_path=_class_path(error.type),
            traceback=f"{error.traceback}{error.type}: {error.message}\n",
        )
    ]


class StoredTaskError(api.TaskError):  # type: ignore[misc]
    """The error of a stored job. Any program that writes to the storage chooses the name: import nothing."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        """The class that the path names, if this process has imported its module; else JobFailed."""
        parts = self.exception_class_path.split(".")
        for length in range(len(parts) - 1, 0, -1):
            if (found := sys.modules.get(".".join(parts[:length]))) is not None:
                return _find_class(found, parts[length:])
        return JobFailed


def _find_class(module: ModuleType, names: Sequence[str]) -> type[BaseException]:
    """Return an exception class of a module; JobFailed if there is none."""
    found: Any = module
    for name in names:
        # Not getattr, which calls the module's or the class's own code.
        if not isinstance(found, (type, ModuleType)):
            return JobFailed
        found = vars(found).get(name)
    return found if isinstance(found, type) and issubclass(found, BaseException) else JobFailed


def _class_path(name: str) -> str:
    """Return the path of an exception class.

    A name of dibs without a class, as of a process that died, gives JobFailed.
    """
    if "." in name:
        return name
    return _CLASSES.get(name) or (
        f"builtins.{name}" if hasattr(builtins, name) else f"{JobFailed.__module__}.{JobFailed.__name__}"
    )
