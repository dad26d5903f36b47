"""Tasks: functions declared with @app.task, whose calls can be enqueued with the types of the function."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast, overload

from attrs import define, evolve, frozen

from dibs.client.calls.bound_job import Bound, KeptCall, TaskKey, build_task_key
from dibs.client.calls.handler_registry import (
    HANDLER_SETTINGS,
    SCHEDULE_SETTINGS,
    TASK_JOB_SETTINGS,
    HandlerRegistry,
    HandlerSettings,
    TaskSettings,
    build_handler,
    build_job_defaults,
    build_schedule,
    check_exact_arguments,
    check_parameter_names,
    task_argument_decoder,
    task_converters,
    task_data_check,
)
from dibs.client.calls.signature import CallSignature
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import Seconds, check_list
from dibs.client.options.job_settings import (
    CALL_SETTINGS,
    CallSettings,
    build_request,
    build_update,
    check_setting_names,
    is_update_only,
)
from dibs.client.queue import H, Queue
from dibs.client.schedules import ScheduleStatus
from dibs.client.ticket import (
    DEFAULT_WAIT,
    Ticket,
    Tickets,
    check_taken,
    extend_request_retention,
    own_retention,
)
from dibs.errors import Refused
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.model.schedule import Overlap

if TYPE_CHECKING:
    from dibs.client.sync.task import BlockingTask, BlockingTaskEnqueuer

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

NO_SETTINGS: CallSettings = {}

_WAIT_BEFORE_COMMIT = (
    "enqueue_and_wait cannot use connection=: workers see the job only after your commit; "
    "call enqueue(), commit, then wait for ticket.result()"
)
_BOUND_CONNECTION = (
    "bind cannot use connection=: pass the connection to enqueue_many, claim.complete or claim.fail"
)


@define(eq=False, repr=False, slots=False)
class TaskEnqueuer(Generic[P, R]):
    """A task with settings for its jobs, returned by `task.options(...)`.

    Its methods take the arguments of the function; settings and arguments never mix.
    """

    _client: QueueClient
    _call: CallSignature
    _settings: CallSettings
    #: Derives the key of a job; None for a task without the option `key`.
    _key: TaskKey | None = None

    def __repr__(self) -> str:
        # The connection is left out, because its repr may contain a password.
        shown = {name: value for name, value in self._settings.items() if name != "connection"}
        settings = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"<{type(self).__name__} {self._client.label}{f' with {settings}' if settings else ''}>"

    @property
    def sync(self) -> BlockingTaskEnqueuer[P, R]:
        """This task and its settings with blocking methods, for code without an event loop."""
        from dibs.client.sync.task import BlockingTaskEnqueuer  # noqa: PLC0415 - async programs never load it

        return BlockingTaskEnqueuer(self)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]:
        """Enqueue a call of the function and return its ticket.

            ticket = await send.enqueue("ada@example.org", subject="Welcome")

        The arguments are encoded and decoded once, as a worker will decode them: arguments that do not fit
        the type hints, or would arrive changed, are refused. Use `task.options(...)` for settings of the
        job; without it the job may start at once, has a generated id and priority 0, and uses the limits of
        the task. A call with `on_conflict=Update(create=False)` takes no arguments.

        Raises Refused naming the parameter or setting at fault, QueueFull if the queue is at its
        `max_waiting` and refuses the job, OutcomeUnknown if the reply of the storage was lost, StorageError.
        """
        if self._settings.get("connection") is not None:
            return await self._enqueue_in_transaction(self._build_request(args, kwargs))
        opened = await self._client.storage_handle.open_for_enqueue()
        # Wait here, before the arguments are encoded, so that a waiting call takes little memory.
        turn = opened.slots.acquire(self._client.name)
        try:
            expires = None if turn is None else await turn
            request = self._build_request(args, kwargs)
            return self._ticket(request, await self._client.enqueue(opened, request, expires))
        finally:
            opened.slots.release(turn)

    async def enqueue_and_wait(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Enqueue a call, wait for the job, and return its result.

            text = await send.enqueue_and_wait("ada@example.org")

        It waits for `wait` seconds of `task.options(wait=...)`, by default 60. Raises the errors of `enqueue`
        and of `ticket.result`. After WaitTimeout the job stays in the queue.
        """
        if self._settings.get("connection") is not None:
            raise Refused(_WAIT_BEFORE_COMMIT, field="connection")
        wait = self._settings.get("wait", DEFAULT_WAIT)
        opened = await self._client.storage_handle.ensure_open()
        turn = opened.slots.acquire(self._client.name)
        try:
            expires = None if turn is None else await turn
            request = self._build_request(args, kwargs, want_outcome=True)
            if not is_update_only(self._settings):
                request = await extend_request_retention(self._client, request, wait)
            ticket = self._ticket(request, await self._client.enqueue(opened, request, expires))
        finally:
            opened.slots.release(turn)
        return await ticket.result(wait)

    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> Bound[R]:
        """Return a call to be enqueued later: with `enqueue_many`, in a flow, or as a job's follow-up.

            await send.enqueue_many([send.bind(to) for to in ("ada@example.org", "bo@example.org")])

        The call that takes the Bound raises the errors of `enqueue`; `bind` itself raises none.
        """
        if self._settings.get("connection") is not None:
            return Bound(self._client.name, Refused(_BOUND_CONNECTION, field="connection"))
        has_id = "id" in self._settings
        try:
            return Bound(self._client.name, self._build_request(args, kwargs), has_id)
        except Refused as refused:
            call = KeptCall(self._call, self._client.serde, args, kwargs, self._settings, self._key)
            return Bound(self._client.name, refused, has_id, call)

    async def _enqueue_in_transaction(self, request: EnqueueRequest) -> Ticket[R]:
        connection = self._settings.get("connection")
        return self._ticket(request, await self._client.enqueue_in_transaction(request, connection))

    def _ticket(self, request: EnqueueRequest, answer: EnqueueResult) -> Ticket[R]:
        retention = own_retention(request)
        return check_taken(
            Ticket(self._client, request.job.id, answer.revision, self._decode_result, answer, retention)
        )

    def _build_request(self, args: Any, kwargs: Any, *, want_outcome: bool = False) -> EnqueueRequest:
        settings = self._settings
        if is_update_only(settings) and not args and not kwargs:
            return build_update(settings, want_outcome=want_outcome)
        payload = self._call.encode_arguments(self._client.serde, args, kwargs)
        if self._key is not None and "key" not in settings:
            settings = {**settings, "key": self._key.derive(args, kwargs)}
        return build_request(payload, settings, want_outcome=want_outcome)

    def _decode_result(self, raw: bytes) -> Any:
        return self._call.decode_result(self._client.serde, raw)


class Task(TaskEnqueuer[P, R]):
    """A function declared with @app.task. Call it to run it here, or enqueue it for a worker."""

    def __init__(
        self,
        client: QueueClient,
        call: CallSignature,
        handlers: HandlerRegistry,
        key: TaskKey | None = None,
        job_defaults: CallSettings = NO_SETTINGS,
    ) -> None:
        super().__init__(client, call, job_defaults, key)
        self._handlers = handlers
        self.function: Callable[..., Any] = call.function
        self.queue: Queue = Queue(client, handlers, self._call)
        """The queue of the task, which can pause, count, list and cancel its jobs."""
        update_wrapper(self, call.function, updated=())

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in this process and return its result."""
        result: R = self.function(*args, **kwargs)
        return result

    @property
    def sync(self) -> BlockingTask[P, R]:
        """This task with blocking methods, for code without an event loop."""
        from dibs.client.sync.task import BlockingTask  # noqa: PLC0415 - async programs never load it

        return BlockingTask(self)

    def options(self, **settings: Unpack[CallSettings]) -> TaskEnqueuer[P, R]:
        """Return the task with settings for its jobs: `await task.options(delay=60).enqueue(...)`.

        The settings, each with its default:

        - `id`: id of the job, 1 to 512 bytes; default: a generated one, which sorts by time.
        - `delay`: seconds until the job may start, text such as "5m", or a timedelta. Default 0.
        - `run_at`: datetime with a time zone from which the job may start; excludes `delay`.
        - `priority`: -1000 to 1000; a higher number starts first. Default: that of the task, else 0.
        - `on_conflict`: Update(...) or Reject(...): how to treat an id that is known already.
          Update(create=False) takes no arguments, and changes nothing for an id without a live job.
          Default Update().
        - `supersede`: True to ask the active run of the id to end, so that this job replaces it; a handed-off
          run ends at once. The caller that waits for the replaced run gets JobCancelled. Default False.
        - `request_key`: text of at most 128 bytes. A second enqueue with the same key within an hour
          changes nothing and gets the ticket of the first. Default: no key.
        - `key`: key of the job, to which `per_key` and `key_rate` of the queue apply: text of 1 to 128 bytes,
          a whole number, or None for no key. Default: the key that the option `key` of the task derives.
        - `attributes`: mapping of text to JSON values, for listings and other programs. Default: empty.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention. Default: the
          retention of the queue.
        - `timeout`, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`: replace the limits of the
          handler for this job; the units are the same. Default: the limits of the handler.
        - `start_by`: datetime with a time zone from which no run may start, or seconds from now by the clock
          of this machine. A worker that claims the job later cancels it. Default: that of the task.
        - `lease`: least seconds of the lease if the job is claimed with `queue.receive`, from the claim on.
          Default: the lease of the receiver. Workers ignore it: they renew a lease of their own.
        - `wait`: seconds that `enqueue_and_wait` waits; None waits until the job ends. Default 60.
        - `connection`: connection of psycopg, SQLAlchemy or Django. The job is enqueued in its transaction.
          Default: none.

        Raises Refused for a setting that does not exist.
        """
        check_setting_names(settings, CALL_SETTINGS)
        if self._settings and not is_update_only(settings):
            settings = {**self._settings, **settings}
        return TaskEnqueuer(self._client, self._call, settings, self._key)

    async def enqueue_many(
        self, jobs: Iterable[Bound[Any]], *, connection: Any = None
    ) -> Sequence[Ticket[R]]:
        """Enqueue many calls, made with `task.bind(...)` or `task.options(...).bind(...)`, in their order.

            tickets = await send.enqueue_many(send.bind(to) for to in ("ada@example.org", "bo@example.org"))

        A `connection` of psycopg, SQLAlchemy or Django enqueues the jobs in its transaction. All jobs are
        checked before the first is sent: raises BatchRefused with one Refused for each bad job. Raises
        QueueFull after all were sent if the queue took only a part of them; its `tickets` say which.
        """
        check_list("jobs", jobs)
        batch = await self._client.enqueue_all(jobs, connection)
        return Tickets[R](self._client, batch, self._decode_result).checked()

    async def schedule(
        self,
        name: str,
        call: Bound[R] | None = None,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        tz: str | None = None,
        catch_up: bool = True,
        overlap: Overlap = "queue",
    ) -> ScheduleStatus:
        """Run a call of the task again and again, by a schedule with a name, and return the schedule.

            await report.schedule("tenant-7", report.bind("tenant-7"), cron="0 3 * * *", tz="Europe/Berlin")

        `call` is made with `task.bind(...)` or `task.options(...).bind(...)`; default: a call without
        arguments. The same name again changes the schedule in place. `task.queue.schedules` lists, pauses,
        resumes and removes schedules; see its method `set` for the arguments and errors.
        """
        call = self.bind() if call is None else call  # type: ignore[call-arg]
        times: Any = {"cron": cron, "every": every, "tz": tz, "catch_up": catch_up, "overlap": overlap}
        return await self.queue.schedules.set(name, call, **times)

    def ticket(self, id: str, revision: int) -> Ticket[R]:
        """Return the ticket of an earlier enqueue by its id and revision, also one of another process.

            text = await send.ticket(ticket.id, ticket.revision).result()

        Its `result()` has the return type of the function: `await charge.ticket(id, revision).result()`.
        Raises Refused for an id that is no text, or a revision that is no number.
        """
        untyped = self.queue.ticket(id, revision)
        return Ticket(self._client, untyped.id, untyped.revision, self._decode_result)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not accept unpacked settings for the keywords of the overloads above.
    def on_failure(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the failure handler: a worker calls it with a Failure for each failed call.

            @send.on_failure
            async def report(failure: Failure) -> None:
                print(failure.args, failure.error.message)

        See Queue.on_failure for the details; the options are those of a handler.
        """
        if function is None:
            return self.queue.on_failure(**settings)
        return self.queue.on_failure(function)

    def after(self, hook: H) -> H:
        """Declare a hook: the worker calls it with the Ending of each run, before it settles the run.

            @send.after
            def note(ending: Ending) -> None:
                print(ending.id, ending.kind)

        See Queue.after. Raises BadHandler for a second hook.
        """
        return self.queue.after(hook)


class AsyncTask(Task[P, R]):
    """A task whose function is an `async def`; R is the type of the awaited result."""

    # The override changes the return type, but no caller holds an AsyncTask as a Task: the decorator
    # returns this type for `async def`.
    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:  # type: ignore[override]
        """Call the function in this process; await the result."""
        coroutine: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return coroutine


@frozen
class TaskDecorator:
    """The decorator that `@app.task(...)` with options returns."""

    _declare: Callable[[Callable[..., Any]], Any]

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Declare the function as a task. Raises BadHandler, Refused, DuplicateHandler."""
        return self._declare(function)


@frozen(eq=False)
class BulkTaskDecorator:
    """The decorator that `@app.bulk_task(...)` returns. The task takes one item of the function's list."""

    _declare: Callable[[Callable[..., Any]], Any]

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, Sequence[R]]], /
    ) -> AsyncTask[[T], R]: ...
    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, None]], /
    ) -> AsyncTask[[T], None]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], Sequence[R]], /) -> AsyncTask[[T], R]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], None], /) -> AsyncTask[[T], None]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Declare the function as a bulk task. Raises BadHandler, Refused, DuplicateHandler."""
        return self._declare(function)


def declare_task(
    client: QueueClient, function: Callable[..., Any], handlers: HandlerRegistry, settings: TaskSettings
) -> Task[Any, Any]:
    """Register a function as the handler of the client's queue, and return the task."""
    check_parameter_names(function)
    check_setting_names(settings, HANDLER_SETTINGS | SCHEDULE_SETTINGS | TASK_JOB_SETTINGS | {"key"})
    settings = handlers.with_defaults(settings, HANDLER_SETTINGS | TASK_JOB_SETTINGS)
    call, serde = CallSignature(function, exact=check_exact_arguments(settings)), client.serde
    limits = cast("HandlerSettings", {n: value for n, value in settings.items() if n in HANDLER_SETTINGS})
    handler = build_handler(client.name, function, serde, task_argument_decoder(call, serde), limits)
    key = build_task_key(function, settings.get("key"))
    schedule, check = build_schedule(call, serde, settings, key), task_data_check(call, serde)
    converters = task_converters(call, serde)
    handlers.register(evolve(handler, schedule=schedule, check_data=check, **converters))
    kind = AsyncTask if handler.is_async else Task
    return kind(client, call, handlers, key, build_job_defaults(settings))
