"""A task: a function that is a queue. Calls are typed as the function's own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.handler import Ending
from dibs.client.calls.handler_registry import (
    HANDLER_SETTINGS,
    HandlerRegistry,
    HandlerSettings,
    handler_of,
    task_arguments,
    task_check,
)
from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_settings import SCHEDULE_SETTINGS, TaskSettings, schedule_of
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.durations import duration_ms
from dibs.client.options.job_settings import CALL_SETTINGS, CallSettings, build_request, check_setting_names
from dibs.client.options.retention import extend_retention
from dibs.client.queue import Queue
from dibs.client.ticket import DEFAULT_WAIT, Ticket, Tickets
from dibs.errors import BadHandler, Refused
from dibs.model.job import OutcomeRetention as KeptFor
from dibs.model.requests import EnqueueRequest

if TYPE_CHECKING:
    from dibs.client.sync.handles import BlockingTask, BlockingTaskEnqueuer

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[Ending], Awaitable[None] | None]
H = TypeVar("H", bound=Hook)

_UNSEEN = "nobody sees the job before your commit, and run would wait in vain: enqueue, commit, result()"
_LATER = "a bound job has no connection: give it to enqueue_many, or to complete"


class TaskEnqueuer(Generic[P, R]):
    """A task with settings: `task.options(id=...)`. It takes the task's own arguments and nothing else."""

    def __init__(self, client: QueueClient, call: CallSignature, settings: CallSettings) -> None:
        self._client = client
        self._call = call
        self._settings = settings

    @property
    def sync(self) -> BlockingTaskEnqueuer[P, R]:
        """The same, blocking."""
        from dibs.client.sync.handles import BlockingTaskEnqueuer  # noqa: PLC0415 - only who blocks pays for it

        return BlockingTaskEnqueuer(self)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a call. Raises Refused naming the parameter or setting at fault, OutcomeUnknown.

        Arguments must be what the type hints say, as they come back from the queue's serde.
        """
        return await self._send(self._request(args, kwargs))

    async def enqueue_and_wait(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a call and return its result, waiting for it as options(wait=...) says, else a minute.

        Raises what enqueue and ticket.result raise; WaitTimeout leaves the job alone.
        """
        if self._settings.get("connection") is not None:
            raise Refused(_UNSEEN, field="connection")
        wait = self._settings.get("wait", DEFAULT_WAIT)
        request = await self._kept(self._request(args, kwargs, want_outcome=True), wait)
        return await (await self._send(request)).result(wait)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> Bound:
        """Return the call, to be enqueued later: in a batch, or as a follow-up of another job."""
        if self._settings.get("connection") is not None:
            return Bound(self._client.name, Refused(_LATER, field="connection"))
        try:
            return Bound(self._client.name, self._request(args, kwargs))
        except Refused as refused:
            return Bound(self._client.name, refused)

    async def _send(self, request: EnqueueRequest) -> Ticket[R]:
        answer = await self._client.enqueue(request, self._settings.get("connection"))
        return Ticket(self._client, request.job.id, answer.revision, self._returns, answer)

    async def _kept(self, request: EnqueueRequest, wait: Any) -> EnqueueRequest:
        """Return the request with a retention that outlives the wait."""
        job, length = request.job, 0 if wait is None else duration_ms("wait", wait)
        own = job.data.retention or KeptFor()
        longer = extend_retention(await self._client.retention(), length, own)
        if longer == own:
            return request
        return replace(request, job=replace(job, data=replace(job.data, retention=longer)))

    def _request(self, args: Any, kwargs: Any, *, want_outcome: bool = False) -> EnqueueRequest:
        payload = self._call.payload(self._client.serde, args, kwargs)
        return build_request(payload, self._settings, want_outcome=want_outcome)

    def _returns(self) -> Any:
        return self._call.returns


class Task(TaskEnqueuer[P, R]):
    """A function declared with @app.task: call it, or let a worker call it."""

    def __init__(self, client: QueueClient, function: Callable[..., Any], handlers: HandlerRegistry) -> None:
        super().__init__(client, CallSignature(function), {})
        self._handlers = handlers
        self.function = function
        #: The queue that the task is: to pause, count, list, cancel and so on.
        self.queue: Queue = Queue(client, handlers, self._call)
        update_wrapper(self, function, updated=())

    def __repr__(self) -> str:
        return f"Task({self.queue.name!r})"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function, here and now."""
        result: R = self.function(*args, **kwargs)
        return result

    @property
    def sync(self) -> BlockingTask[P, R]:
        """The same, blocking."""
        from dibs.client.sync.handles import BlockingTask  # noqa: PLC0415 - only who blocks pays for it

        return BlockingTask(self)

    def options(self, **settings: Unpack[CallSettings]) -> TaskEnqueuer[P, R]:
        """Return the task with settings for the next job: they never mix with its arguments."""
        check_setting_names(settings, CALL_SETTINGS)
        return TaskEnqueuer(self._client, self._call, settings)

    async def enqueue_many(self, jobs: Iterable[Bound], *, connection: Any = None) -> Sequence[Ticket[R]]:
        """Enqueue any number of task.bind(...) and task.options(...).bind(...), in order.

        All are checked first: raises BatchRefused naming each bad one, and then nothing was sent.
        """
        return Tickets(self._client, await self._client.enqueue_all(jobs, connection), self._returns)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not see that unpacked settings are keywords of this one, too.
    def on_failure(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the function that is told of calls that failed for good; see Queue.on_failure."""
        if function is None:
            return self.queue.on_failure(**settings)
        return self.queue.on_failure(function)

    def after(self, hook: H) -> H:
        """Declare a hook that sees each end before it is settled; it may change result and retention."""
        handler = self._handlers[self.queue.name]
        if handler.after is not None:
            raise BadHandler(f"{self.queue.name} has a hook already; a task has one: call both from it")
        self._handlers[self.queue.name] = replace(handler, after=hook)
        return hook


class AsyncTask(Task[P, R]):
    """The same for an `async def`: R is what awaiting it gives."""

    # A caller of a task never knows it as a plain Task: the decorator returns this type for `async def`.
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the function, here and now: await it."""
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


class TaskDecorator:
    """What @app.task(...) with options returns: it declares the function below it."""

    def __init__(self, declare: Callable[[Callable[..., Any]], Any]) -> None:
        self._declare = declare

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Declare the function. Raises BadHandler, DuplicateHandler."""
        return self._declare(function)


def declare_task(
    client: QueueClient, function: Callable[..., Any], handlers: HandlerRegistry, settings: TaskSettings
) -> Task[Any, Any]:
    """Register a function as the handler of its own queue, and return the task."""
    check_setting_names(settings, HANDLER_SETTINGS | SCHEDULE_SETTINGS)
    call, serde = CallSignature(function), client.serde
    limits = cast("HandlerSettings", {n: value for n, value in settings.items() if n in HANDLER_SETTINGS})
    handler = handler_of(client.name, function, serde, task_arguments(call, serde), limits)
    schedule, check = schedule_of(call, serde, settings), task_check(call, serde)
    handlers.register(replace(handler, schedule=schedule, check=check))
    kind = AsyncTask if handler.is_async else Task
    return kind(client, function, handlers)
