"""`Failure`, the argument of a failure handler: the job that failed and its error."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import decode_task_payload
from dibs.client.options.durations import utc_datetime
from dibs.client.options.serde import Serde
from dibs.errors import PermanentError
from dibs.model.job import Error, ErrorKind, Job


class Failure(Struct, frozen=True, kw_only=True):
    """A failed job with its error; a failure handler is called with it (contract 3, the fail job)."""

    queue: str
    """Name of the queue of the failed job."""
    id: str
    """Id of the failed job."""
    args: tuple[Any, ...] = ()
    """Positional arguments of a failed task, converted to their type hints if that is possible."""
    kwargs: dict[str, Any] = {}
    """Keyword arguments of a failed task."""
    data: Any = None
    """Data of a failed job of a queue without a task; bytes if the queue's serde cannot decode them."""
    attributes: dict[str, Any] = {}
    """Attributes of the failed job."""
    error: Error
    """Type, message, traceback, cause and kind of the error, as text."""
    attempts: int
    """Number of times the job was claimed."""
    retries: int
    """Number of times the job returned to the queue after an error."""
    stalls: int
    """Number of times the job returned to the queue because its worker was gone."""
    timeouts: int
    """Number of times the job returned to the queue after a timeout."""
    enqueued_at: datetime
    """Time of the enqueue, in UTC."""
    run_at: datetime
    """Time from which the last run might start, in UTC."""

    @property
    def kind(self) -> ErrorKind:
        """Reason of the failure: "error", "permanent", "timeout" or "stall"; see Error.kind."""
        return self.error.kind


def build_failure(job: Job, serde: Serde, task: CallSignature | None) -> Failure:
    """Return the Failure for a fail job.

    A fail job is the job that the storage enqueues to `name!fail` when a job of `name` fails. If its payload
    does not fit the type hints of the task, the Failure has the values without conversion, or the bytes.

    Raises PermanentError if a program has enqueued `job` to the fail queue itself.
    """
    origin = job.origin
    if origin is None:
        raise PermanentError(
            f"{job.id} has no origin, because a program enqueued it: only the storage enqueues to a fail "
            "queue. Enqueue the job to another queue"
        )
    return Failure(
        queue=origin.queue,
        id=origin.id,
        error=origin.error,
        attempts=origin.attempts,
        retries=origin.retries,
        stalls=origin.stalls,
        timeouts=origin.timeouts,
        enqueued_at=utc_datetime(origin.enqueued_at),
        run_at=utc_datetime(origin.run_at),
        attributes={name: msgspec.json.decode(raw) for name, raw in origin.attributes.items()},
        **(
            _decode_data(serde, job.data.payload)
            if task is None
            else _decode_call(serde, job.data.payload, task)
        ),
    )


def _decode_data(serde: Serde, payload: bytes) -> dict[str, Any]:
    try:
        return {"data": serde.decode(payload)}
    except ValueError:
        return {"data": payload}


def _decode_call(serde: Serde, payload: bytes, task: CallSignature) -> dict[str, Any]:
    for decode in (task.decode_arguments, decode_task_payload):
        try:
            args, kwargs = decode(serde, payload)
        except PermanentError:
            continue
        return {"args": args, "kwargs": kwargs}
    return _decode_data(serde, payload)
