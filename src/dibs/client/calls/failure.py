"""`Failure`, the argument of a failure handler: the job that failed and its error. An exception becomes an
`Error`, its stored form: type, message, traceback and causes as text.

dibs never builds an exception from that text: stored data must not choose which class Python imports.
"""

from __future__ import annotations

import os
import traceback
from datetime import datetime
from types import TracebackType
from typing import Any

import msgspec
from msgspec import Struct

from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import decode_task_payload
from dibs.client.options.arguments import utc_datetime
from dibs.client.options.serde import Serde
from dibs.errors import PermanentError
from dibs.model.error_text import message_of, to_storable_error, type_name
from dibs.model.job import Error, ErrorKind, Job
from dibs.model.limits import LIMITS

#: Most errors that are stored of a chain of causes, the exception itself included.
MAX_DEPTH = 8
_PACKAGE_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - pathlib takes longer to import than this package


def error_from_exception(exception: BaseException) -> Error:
    """Return the stored form of an exception and its causes, cut to the limit of contract 4, error text.

    The traceback begins at the first frame outside this package. Raises MemoryError, and nothing else.
    """
    try:
        return to_storable_error(_build_error(exception, MAX_DEPTH, set()))
    except MemoryError:
        raise
    except BaseException as broken:  # noqa: BLE001 - attributes of the user's exception may raise anything
        message = f"(no message: describing it raised {type(broken).__name__})"
        return to_storable_error(Error(type=type_name(type(exception)), message=message))


def _build_error(exception: BaseException, depth: int, seen: set[int]) -> Error:
    seen.add(id(exception))
    cause = _find_cause(exception)
    has_next = cause is not None and depth > 1 and id(cause) not in seen
    return Error(
        type=type_name(type(exception)),
        message=_exception_text(exception),
        traceback="".join(traceback.format_tb(_skip_own_frames(exception.__traceback__))),
        cause=_build_error(cause, depth - 1, seen) if cause is not None and has_next else None,
    )


def _find_cause(exception: BaseException) -> BaseException | None:
    if exception.__cause__ is not None or exception.__suppress_context__:
        return exception.__cause__
    return exception.__context__


def _exception_text(exception: BaseException) -> str:
    """Return the message of an exception; that of a group lists the exceptions in it, at any depth."""
    lines = [message_of(exception)]
    size, rest = len(lines[0]), _exceptions_of_group(exception)
    # A loop, because groups may be nested deeper than Python recurses.
    while rest and size < LIMITS.error:
        part = rest.pop()
        rest += _exceptions_of_group(part)
        lines.append(f"- {type_name(type(part))}: {message_of(part)}")
        size += len(lines[-1])
    return "\n".join([*lines, "- (more exceptions are left out)"] if rest else lines)


def _exceptions_of_group(exception: BaseException) -> list[BaseException]:
    """Return the exceptions of a group, the first one last; [] if the exception is no group."""
    return [*reversed(exception.exceptions)] if isinstance(exception, BaseExceptionGroup) else []


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame outside this package; all of it if it has no such frame."""
    rest = trace
    while rest is not None and rest.tb_frame.f_code.co_filename.startswith(_PACKAGE_FOLDER):
        rest = rest.tb_next
    return rest or trace


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
