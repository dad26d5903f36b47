"""What a failure handler is told of the job that failed for good."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from dibs.client.calls.signature import CallSignature, split
from dibs.client.options.durations import utc_datetime
from dibs.client.options.serde import Serde
from dibs.errors import PermanentError
from dibs.model.job import Error, Job


class Failure(Struct, frozen=True, kw_only=True):
    """A job that failed for good: what it was asked, and why it could not (contract 3, the fail job)."""

    queue: str
    id: str
    #: Of a task: what it was called with, as its parameters' types where they can still be made.
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    #: Of a queue without a task; raw bytes if they cannot be decoded.
    data: Any = None
    #: type, message, traceback and cause, as text.
    error: Error
    attempts: int
    retries: int
    stalls: int
    timeouts: int
    enqueued_at: datetime


def failure_of(job: Job, serde: Serde, task: CallSignature | None) -> Failure:
    """Return what a fail job tells. A payload that nobody can read is no reason to fail again."""
    origin = job.origin
    if origin is None:
        raise PermanentError(f"{job.id} is no fail job: it does not say where it comes from")
    return Failure(
        queue=origin.queue,
        id=origin.id,
        error=origin.error,
        attempts=origin.attempts,
        retries=origin.retries,
        stalls=origin.stalls,
        timeouts=origin.timeouts,
        enqueued_at=utc_datetime(origin.enqueued_at),
        **(_data(serde, job.data.payload) if task is None else _call(serde, job.data.payload, task)),
    )


def _data(serde: Serde, payload: bytes) -> dict[str, Any]:
    try:
        return {"data": serde.decode(payload)}
    except ValueError:
        return {"data": payload}


def _call(serde: Serde, payload: bytes, task: CallSignature) -> dict[str, Any]:
    for read in (task.arguments, split):
        try:
            args, kwargs = read(serde, payload)
        except PermanentError:
            continue
        return {"args": args, "kwargs": kwargs}
    return _data(serde, payload)
