"""From a function and its options to the one Handler of a queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final, TypedDict

from msgspec.structs import replace

from dibs.client.calls.current_job import CURRENT
from dibs.client.calls.failure import failure_of
from dibs.client.calls.handler import Executor, Handler, HandlerLimits
from dibs.client.calls.middleware import RunMiddleware, compose_run
from dibs.client.calls.signature import CallSignature, check_function
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import check_count_limit, check_duration_limit, check_setting_names
from dibs.client.options.serde import Serde
from dibs.errors import BadHandler, DuplicateHandler, PermanentError, Refused
from dibs.model.check_values import check_number
from dibs.model.job import FAIL_SUFFIX, Job
from dibs.model.retry import Backoff

ArgumentDecoder = Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]
DataCheck = Callable[[Any, bytes], None]


class HandlerSettings(TypedDict, total=False):
    """What a handler may take, and how a worker serves it. They act at the moment of decision."""

    #: How long one run may take, in seconds; 60. None is without limit, here and below.
    timeout: Seconds | None
    #: How often a job may come back after an error; 10, so 11 runs.
    max_retries: int | None
    #: How often after a timeout; 3.
    max_timeouts: int | None
    #: How often after its worker died; 3.
    max_stalls: int | None
    #: When it comes back; Exponential(2, 300).
    backoff: Backoff
    #: Units of a worker process's 100 that one run takes; 10.
    size: int
    #: Queues with a higher one are served first; 100.
    queue_priority: int
    #: "process" runs each job alone in a process; "auto" on the loop or on a thread.
    executor: Executor


HANDLER_SETTINGS: Final = frozenset(HandlerSettings.__annotations__)
_LIMITS: Final = ("timeout", "max_retries", "max_timeouts", "max_stalls", "backoff")


class HandlerRegistry(dict[str, Handler]):
    """The handlers of an app, by queue: one for each, and each knows whether its failures are handled."""

    #: What stands around each run, if anything does.
    run_middleware: RunMiddleware | None = None

    def add_middleware(self, middleware: RunMiddleware) -> None:
        """Wrap each run in a middleware, also the runs of handlers that are declared later."""
        self.run_middleware = compose_run(middleware, self.run_middleware)
        for queue, handler in self.items():
            self[queue] = replace(handler, middleware=self.run_middleware)

    def register(self, handler: Handler) -> None:
        """Take a handler in. Raises DuplicateHandler."""
        known = self.get(handler.queue)
        if known is not None:
            raise DuplicateHandler(
                f"queue {handler.queue!r} is handled by {known.function.__qualname__} already; "
                f"a queue has exactly one handler: give {handler.function.__qualname__} a queue of its own"
            )
        handled = f"{handler.queue}{FAIL_SUFFIX}" in self
        self[handler.queue] = replace(handler, handles_failure=handled, middleware=self.run_middleware)
        whose = handler.queue.removesuffix(FAIL_SUFFIX)
        if whose != handler.queue and whose in self:
            self[whose] = replace(self[whose], handles_failure=True)


def handler_of(
    queue: str,
    function: Callable[..., Any],
    serde: Serde,
    arguments: ArgumentDecoder,
    settings: HandlerSettings,
) -> Handler:
    """Return the handler that a function is with these settings. Raises BadHandler, Refused."""
    check_function(function)
    check_setting_names(settings, HANDLER_SETTINGS)
    return Handler(
        queue=queue,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        serde=serde,
        arguments=arguments,
        limits=limits_of(settings),
        **_served(settings),
    )


def limits_of(settings: HandlerSettings) -> HandlerLimits:
    """Return the limits, those left out at their defaults."""
    given: dict[str, Any] = {name: settings[name] for name in _LIMITS if name in settings}
    if "timeout" in given:
        given["timeout"] = check_duration_limit("timeout", given["timeout"])
    for name in ("max_retries", "max_timeouts", "max_stalls"):
        if name in given:
            given[name] = check_count_limit(name, given[name])
    return HandlerLimits(**given)


def _served(settings: HandlerSettings) -> dict[str, Any]:
    check_number("size", settings.get("size"), 1, 100)
    check_number("queue_priority", settings.get("queue_priority"), -(2**31), 2**31)
    executor = settings.get("executor", "auto")
    if executor not in ("auto", "process"):
        raise BadHandler(f'executor is {executor!r}; it is "auto" or "process"')
    return {name: settings[name] for name in ("size", "queue_priority", "executor") if name in settings}


def task_arguments(call: CallSignature, serde: Serde) -> ArgumentDecoder:
    """Return what turns a task's job into the arguments of its function."""
    return lambda job: call.arguments(serde, job.data.payload)


def queue_arguments(call: CallSignature, serde: Serde) -> ArgumentDecoder:
    """Return what calls a queue's handler: with the data, and with the current job if it takes a second."""
    names = call.positional

    def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        data = call.converted(names[0], decoded(serde, job.data.payload))
        return ((data, CURRENT.get()) if len(names) > 1 else (data,)), {}

    _check_takes(call, names)
    return arguments


def task_check(call: CallSignature, serde: Serde) -> DataCheck:
    """Return what refuses data that is no call of a task, for its queue takes plain data as well."""
    return lambda _, payload: call.check(serde, payload)


def queue_check(call: CallSignature, serde: Serde) -> DataCheck:
    """Return what refuses data that is not what a queue's handler is annotated to take."""
    name = call.positional[0]

    def check(data: Any, payload: bytes) -> None:
        if call.takes_as_it_is(name, data):
            return
        try:
            call.converted(name, decoded(serde, payload))
        except PermanentError as error:
            raise Refused(str(error), field="data") from error

    return check


def failure_arguments(call: CallSignature, serde: Serde, task: CallSignature | None) -> ArgumentDecoder:
    """Return what calls a failure handler: with the Failure, and the current job if it takes a second."""
    names = call.positional

    def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        failure = failure_of(job, serde, task)
        return ((failure, CURRENT.get()) if len(names) > 1 else (failure,)), {}

    _check_takes(call, names)
    return arguments


def decoded(serde: Serde, payload: bytes) -> Any:
    """Return a payload as data. Raises PermanentError."""
    try:
        return serde.decode(payload)
    except ValueError as error:
        raise PermanentError(f"the payload is no {serde.name}: {error}") from error


def _check_takes(call: CallSignature, names: list[str]) -> None:
    if not 1 <= len(names) <= 2:
        raise BadHandler(
            f"{call.function.__qualname__} must take the data, and the job if it wants: (data, job)"
        )
