"""`assert_enqueued` and `refute_enqueued`: a job with these arguments or attributes is there, or not."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack, overload

from attrs import frozen

from dibs.client.options.serde import JSON
from dibs.client.queue import Queue
from dibs.client.status import Status
from dibs.client.sync import background_loop
from dibs.client.sync.queue import BlockingQueue
from dibs.client.sync.task import BlockingTask
from dibs.client.task import Task
from dibs.errors import PermanentError

T = TypeVar("T")

#: Stands for an argument of `assert_enqueued` that is left out, because None is allowed as data.
NOT_GIVEN: Final[Any] = object()
#: Most jobs that the message of a failed assertion shows.
MAX_SHOWN: Final = 10
#: Most characters that the message shows of one job.
MAX_TEXT: Final = 300
LIVE_STATES: Final[tuple[Literal["waiting", "active", "blocked"], ...]] = ("waiting", "active", "blocked")


class WantedJob(TypedDict, total=False):
    """The job that an assertion is about; `assert_enqueued` explains the keys."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    data: Any
    attributes: Mapping[str, Any] | None
    id: str | None


@overload
def assert_enqueued(
    target: Task[..., Any] | Queue, **wanted: Unpack[WantedJob]
) -> Coroutine[Any, Any, Status]: ...
@overload
def assert_enqueued(
    target: BlockingTask[..., Any] | BlockingQueue, **wanted: Unpack[WantedJob]
) -> Status: ...
def assert_enqueued(
    target: Task[..., Any] | Queue | BlockingTask[..., Any] | BlockingQueue, **wanted: Unpack[WantedJob]
) -> Coroutine[Any, Any, Status] | Status:
    """Assert that a queue has a job with these arguments, data, attributes or id.

    Example: `await assert_enqueued(send, args=("ada@example.org",), attributes={"order": 7})`. A blocking
    task or queue (`send.sync`) needs no `await`. A job that has ended is not found, so assert before the jobs
    run. Each argument that is left out matches every job.

    - `target`: the task or the queue of the job.
    - `args`, `kwargs`: the arguments of the call of a task. They match however the call was written:
      `send("ada")` equals `send(to="ada")`.
    - `data`: the data of a job of a queue.
    - `attributes`: attributes that the job has; it may have others.
    - `id`: the id of the job.

    Returns the status of the first job that matches. Raises AssertionError with the jobs that are enqueued
    instead, Refused for arguments that the task does not take.
    """
    return _search(_find_or_fail, target, wanted)


@overload
def refute_enqueued(
    target: Task[..., Any] | Queue, **wanted: Unpack[WantedJob]
) -> Coroutine[Any, Any, None]: ...
@overload
def refute_enqueued(target: BlockingTask[..., Any] | BlockingQueue, **wanted: Unpack[WantedJob]) -> None: ...
def refute_enqueued(
    target: Task[..., Any] | Queue | BlockingTask[..., Any] | BlockingQueue, **wanted: Unpack[WantedJob]
) -> Coroutine[Any, Any, None] | None:
    """Assert that a queue has no job that `assert_enqueued` would find with these arguments.

    Example: `await refute_enqueued(send, args=("ada@example.org",))`. Without arguments the queue must have
    no waiting, active or blocked job. A job that has ended is not found.

    Returns None. Raises AssertionError with the first job that matches, Refused for arguments that the task
    does not take.
    """
    return _search(_find_none_or_fail, target, wanted)


def _search(
    search: Callable[[Criteria], Coroutine[Any, Any, T]],
    target: Task[..., Any] | Queue | BlockingTask[..., Any] | BlockingQueue,
    wanted: WantedJob,
) -> Coroutine[Any, Any, T] | T:
    if not isinstance(target, BlockingTask | BlockingQueue):
        return search(_build_criteria(target, **wanted))
    source, handle = target._source, target._storage_handle  # noqa: SLF001 - the async form, and its storage
    name = "refute_enqueued" if search is _find_none_or_fail else "assert_enqueued"
    return background_loop.run(handle, f"await {name}(...)", search(_build_criteria(source, **wanted)))


@frozen
class Criteria:
    """The job that `assert_enqueued` looks for. A field that is NOT_GIVEN matches every job."""

    queue: Queue
    #: Positional and keyword arguments, as a worker decodes them.
    call: Any
    #: Data, as it comes back from the queue's serde.
    data: Any
    #: Attributes, as they come back from JSON.
    attributes: Mapping[str, Any]
    id: str | None

    def matches(self, job: Status) -> bool:
        return (
            self.id in (None, job.id)
            and (self.data is NOT_GIVEN or self.data == job.data)
            and (self.call is NOT_GIVEN or self.call == _decode_call(self.queue, job.data))
            and all(job.attributes.get(name, NOT_GIVEN) == value for name, value in self.attributes.items())
        )

    def describe(self) -> str:
        args, kwargs = (NOT_GIVEN, NOT_GIVEN) if self.call is NOT_GIVEN else self.call
        fields = {"args": args, "kwargs": kwargs, "data": self.data}
        fields |= {
            "attributes": self.attributes or NOT_GIVEN,
            "id": NOT_GIVEN if self.id is None else self.id,
        }
        wanted = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value is not NOT_GIVEN)
        return f"queue {self.queue.name!r}" + (f" with {wanted}" if wanted else "")


def _build_criteria(
    target: Task[..., Any] | Queue,
    *,
    args: Sequence[Any] = NOT_GIVEN,
    kwargs: Mapping[str, Any] = NOT_GIVEN,
    data: Any = NOT_GIVEN,
    attributes: Mapping[str, Any] | None = None,
    id: str | None = None,
) -> Criteria:
    call = NOT_GIVEN if args is NOT_GIVEN and kwargs is NOT_GIVEN else (args, kwargs)
    queue = target.queue if isinstance(target, Task) else target
    serde = queue._client.serde  # noqa: SLF001 - an assertion reads the payloads of the queue
    return Criteria(
        queue=queue,
        call=call if call is NOT_GIVEN else _as_decoded(queue, *call),
        data=data if data is NOT_GIVEN else serde.decode(serde.encode(data)),
        attributes=JSON.decode(JSON.encode(dict(attributes or {}))),
        id=id,
    )


def _as_decoded(queue: Queue, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return the arguments of a call as a worker decodes them. Raises Refused if they do not fit."""
    task, serde = queue._task, queue._client.serde  # noqa: SLF001 - an assertion reads the payloads of the queue
    if task is None:
        raise TypeError(f"queue {queue.name!r} has no task in this app, so its jobs have no args: pass data=")
    payload = task.encode_arguments(
        serde, () if args is NOT_GIVEN else tuple(args), {} if kwargs is NOT_GIVEN else dict(kwargs)
    )
    return task.decode_arguments(serde, payload)


def _decode_call(queue: Queue, data: Any) -> Any:
    """Return the arguments in the data of a job as a worker decodes them; None for other data."""
    task, serde = queue._task, queue._client.serde  # noqa: SLF001 - as in `_as_decoded`
    try:
        return None if task is None else task.decode_arguments(serde, serde.encode(data))
    except PermanentError:
        return None


async def _find_or_fail(wanted: Criteria) -> Status:
    jobs = await _live_jobs(wanted)
    for job in jobs:
        if wanted.matches(job):
            return job
    raise AssertionError(await _describe_failure(wanted, jobs))


async def _find_none_or_fail(wanted: Criteria) -> None:
    for job in await _live_jobs(wanted):
        if wanted.matches(job):
            found = _describe_job(wanted.queue, job)
            raise AssertionError(f"a job is enqueued in {wanted.describe()}: {found}")


async def _live_jobs(wanted: Criteria) -> list[Status]:
    return [job for state in LIVE_STATES async for job in wanted.queue.list(state)]


async def _describe_failure(wanted: Criteria, jobs: Sequence[Status]) -> str:
    counts = await wanted.queue.counts()
    ended = counts.completed + counts.failed + counts.cancelled
    lines = [f"no job is enqueued in {wanted.describe()}"]
    lines += [
        f"the queue has {_count(len(jobs))}:" if jobs else "the queue has no waiting, active or blocked job"
    ]
    lines += [f"  {_describe_job(wanted.queue, job)}" for job in jobs[:MAX_SHOWN]]
    if len(jobs) > MAX_SHOWN:
        lines.append(f"  and {len(jobs) - MAX_SHOWN} more")
    if ended:
        lines.append(f"{_count(ended)} ended already: assert before the jobs run")
    return "\n".join(lines)


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"


def _describe_job(queue: Queue, job: Status) -> str:
    call = _decode_call(queue, job.data)
    if call is None:
        shown = repr(job.data)
    else:
        args, kwargs = call
        named = [f"{name}={value!r}" for name, value in kwargs.items()]
        shown = f"{queue.name}({', '.join([*map(repr, args), *named])})"
    text = f"{job.id!r} ({job.state}): {shown}"
    text += f", attributes {dict(job.attributes)}" if job.attributes else ""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."
