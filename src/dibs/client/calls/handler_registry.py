"""Handlers: built from a function and its options, and registered by queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypedDict, cast

from attrs import evolve
from msgspec.structs import replace

from dibs.client.calls.current_job import CURRENT_JOB
from dibs.client.calls.failure import build_failure
from dibs.client.calls.functions import check_function
from dibs.client.calls.handler import DEFAULT_LIMITS, FAILURE_LIMITS, Executor, Handler, HandlerLimits
from dibs.client.calls.middleware import RunMiddleware, compose_run
from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import check_count_limit, check_duration_limit, check_setting_names
from dibs.client.options.queue_settings import QueueSettings, build_patch
from dibs.client.options.rate import Rate
from dibs.client.options.retention import Retention
from dibs.client.options.serde import Serde
from dibs.errors import BadHandler, DuplicateHandler, PermanentError, Refused
from dibs.model.check_jobs import check_backoff
from dibs.model.check_values import check_optional_number
from dibs.model.job import FAIL_SUFFIX, Job
from dibs.model.requests import SettingsPatch
from dibs.model.retry import Backoff

#: Returns the positional and keyword arguments of a handler for a job.
ArgumentDecoder = Callable[[Job], tuple[tuple[Any, ...], dict[str, Any]]]
#: Called with data and its payload. Raises Refused if the handler could not be called with them.
DataCheck = Callable[[Any, bytes], None]


class HandlerSettings(TypedDict, total=False):
    """Options of a handler: the limits of its jobs, and how a worker serves its queue.

    When a run ends, the worker uses the limits of the code that it runs, not those of the enqueue. The
    defaults of a failure handler differ: `max_retries` and `max_timeouts` are 110, and `backoff` is
    Exponential(10, 900), so its retries last at least 24 hours.
    """

    timeout: Seconds | None
    """Seconds that one run may take; None is no limit. Default: 60."""
    max_retries: int | None
    """Retries after an error; None is no limit. Default: 10, so 11 runs."""
    max_timeouts: int | None
    """Retries after a timeout; None is no limit. Default: 3."""
    max_stalls: int | None
    """Retries after the worker process died or its lease expired; None is no limit. Default: 3."""
    backoff: Backoff
    """Delay before a retry: Immediate(), Fixed(seconds) or Exponential(first, cap).

    Default: Exponential(2, 300)."""
    size: int
    """Capacity units one run takes, 1 to 100; a worker process has 100. Default: 10."""
    queue_priority: int
    """A worker serves queues with a higher number first. Default: 100."""
    executor: Executor
    """"auto" runs `async def` on the event loop and `def` on a thread; "process" runs each job in a process
    that runs only this job at the time. Default: "auto"."""
    max_active: int | None
    """Jobs of the queue that may be active at once over all workers; None is no limit. A worker writes it to
    the storage when it starts. Default: the setting of `queue.configure`."""
    per_key: int | None
    """Jobs of one key that may be active at once over all workers; None is no limit. A worker writes it to
    the storage when it starts. Default: the setting of `queue.configure`."""
    rate: Rate | None
    """The rate of starts over all workers, as in `Rate(5, per=1)`; None for no limit. A worker writes it
    to the storage when it starts. Default: the setting of `queue.configure`."""
    key_rate: Rate | None
    """The rate of starts of one key over all workers, as in `Rate(10, per=60)`; None for no limit. A
    worker writes it to the storage when it starts. Default: the setting of `queue.configure`."""
    log_results: int
    """Longest result that the log of the queue keeps, in bytes; 0 keeps none. A worker writes it to the
    storage when it starts. Default: the setting of `queue.configure`."""
    retention: Retention | Seconds | None
    """Seconds that the queue keeps outcomes, None for ever, or a Retention. A worker writes it to the storage
    when it starts. Default: the setting of `queue.configure`."""
    strict_results: bool
    """True fails a run, without a retry, whose result cannot be encoded; False completes it, because its work
    is done, and keeps a text with the repr of the result. Default: False."""
    exact_arguments: bool
    """True refuses an enqueue whose arguments would arrive changed; False sends them. A failure handler does
    not have this option. Default: True."""


HANDLER_SETTINGS: Final = frozenset(HandlerSettings.__annotations__)
_QUEUE_SETTINGS: Final = ("max_active", "per_key", "rate", "key_rate", "log_results", "retention")
_SCHEDULING_SETTINGS: Final = ("size", "queue_priority", "executor", "strict_results")
_LIMIT_SETTINGS: Final = ("timeout", "max_retries", "max_timeouts", "max_stalls", "backoff")


class HandlerRegistry(dict[str, Handler]):
    """The handlers of an app by queue name; a queue has at most one."""

    #: All middleware of `app.middleware(run=...)`, composed to one; None without middleware.
    run_middleware: RunMiddleware | None = None

    def add_middleware(self, middleware: RunMiddleware) -> None:
        """Wrap each run in a middleware, also the runs of handlers that are declared later."""
        self.run_middleware = compose_run(middleware, self.run_middleware)
        for queue, handler in self.items():
            self[queue] = evolve(handler, middleware=self.run_middleware)

    def declared_settings(self, queues: Iterable[str]) -> dict[str, SettingsPatch]:
        """Return the settings that handlers declare for their queues, for those of `queues` with any.

        The handler of a fail queue, `name!fail`, declares the setting `fail_handler` for the queue `name`.
        """
        declared: dict[str, SettingsPatch] = {}
        for queue in queues:
            if (patch := self[queue].queue_settings) is not None:
                handles_failure = declared.get(queue, SettingsPatch()).fail_handler
                declared[queue] = replace(patch, fail_handler=handles_failure)
            if queue.endswith(FAIL_SUFFIX):
                origin = queue.removesuffix(FAIL_SUFFIX)
                declared[origin] = replace(declared.get(origin, SettingsPatch()), fail_handler=True)
        return declared

    def sizes(self) -> dict[str, int]:
        """Return queue -> capacity units that one run of its handler takes, 1 to 100."""
        return {queue: handler.size for queue, handler in self.items()}

    def check_hints(self, queues: Iterable[str]) -> None:
        """Raise BadHandler if a type hint of a handler does not exist, or its values cannot be sent."""
        for queue in queues:
            if (check := self[queue].check_hints) is not None:
                check()

    def register(self, handler: Handler) -> None:
        """Add a handler. Raises DuplicateHandler if its queue has one already."""
        known = self.get(handler.queue)
        if known is not None:
            raise DuplicateHandler(
                f"queue {handler.queue!r} has the handler {known.function.__qualname__} already, and a queue "
                f"has exactly one; declare {handler.function.__qualname__} for another queue"
            )
        self[handler.queue] = evolve(handler, middleware=self.run_middleware)


def build_handler(
    queue: str,
    function: Callable[..., Any],
    serde: Serde,
    decode_arguments: ArgumentDecoder,
    settings: HandlerSettings,
) -> Handler:
    """Return the handler of a queue for a function and its options. Raises BadHandler, Refused.

    The defaults of the limits are FAILURE_LIMITS for a fail queue, else DEFAULT_LIMITS.
    """
    check_function(function)
    check_setting_names(settings, HANDLER_SETTINGS)
    defaults = FAILURE_LIMITS if queue.endswith(FAIL_SUFFIX) else DEFAULT_LIMITS
    return Handler(
        queue=queue,
        function=function,
        is_async=inspect.iscoroutinefunction(function),
        serde=serde,
        decode_arguments=decode_arguments,
        limits=build_limits(settings, defaults),
        queue_settings=_build_queue_settings(settings),
        **_scheduling_options(settings),
    )


def check_exact_arguments(settings: Mapping[str, Any]) -> bool:
    """Return the option `exact_arguments`, by default True. Raises Refused for another value than a bool."""
    exact = settings.get("exact_arguments", True)
    if not isinstance(exact, bool):
        raise Refused(f"exact_arguments is {exact!r:.60}; it must be True or False", field="exact_arguments")
    return exact


def check_failure_settings(settings: Mapping[str, Any]) -> None:
    """Raise Refused for an option that a failure handler does not have."""
    if "exact_arguments" in settings:
        raise Refused(
            "exact_arguments is set for a failure handler, but nobody enqueues its jobs; leave it out",
            field="exact_arguments",
        )


def build_limits(settings: HandlerSettings, defaults: HandlerLimits = DEFAULT_LIMITS) -> HandlerLimits:
    """Return the limits that the options set, in ms, and `defaults` for the others. Raises Refused."""
    limits: dict[str, Any] = {name: settings[name] for name in _LIMIT_SETTINGS if name in settings}
    if "timeout" in limits:
        limits["timeout"] = check_duration_limit("timeout", limits["timeout"])
    for name in ("max_retries", "max_timeouts", "max_stalls"):
        if name in limits:
            limits[name] = check_count_limit(name, limits[name])
    if "backoff" in limits:
        check_backoff("backoff", limits["backoff"])
    return replace(defaults, **limits)


def _build_queue_settings(settings: HandlerSettings) -> SettingsPatch | None:
    declared = {name: settings[name] for name in _QUEUE_SETTINGS if name in settings}
    return build_patch(cast("QueueSettings", declared)) if declared else None


def _scheduling_options(settings: HandlerSettings) -> dict[str, Any]:
    check_optional_number("size", settings.get("size"), 1, 100)
    check_optional_number("queue_priority", settings.get("queue_priority"), -(2**31), 2**31)
    executor = settings.get("executor", "auto")
    if executor not in ("auto", "process"):
        raise BadHandler(f'executor is {executor!r}; it must be "auto" or "process"')
    strict = settings.get("strict_results", False)
    if not isinstance(strict, bool):
        raise Refused(f"strict_results is {strict!r:.60}; it must be True or False", field="strict_results")
    return {name: settings[name] for name in _SCHEDULING_SETTINGS if name in settings}


def task_argument_decoder(call: CallSignature, serde: Serde) -> ArgumentDecoder:
    """Return a function that decodes the payload of a task's job to the arguments of the task."""
    return lambda job: call.decode_arguments(serde, job.data.payload)


def queue_argument_decoder(call: CallSignature, serde: Serde) -> ArgumentDecoder:
    """Return a function that decodes a job to the arguments of a queue's handler: (data) or (data, job)."""
    names = call.positional_names

    def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        data = call.convert_argument(names[0], decode_payload(serde, job.data.payload))
        return ((data, CURRENT_JOB.get()) if len(names) > 1 else (data,)), {}

    _check_parameter_count(call, names)
    return arguments


def task_converters(call: CallSignature, serde: Serde) -> dict[str, Any]:
    """Return the fields of a task's Handler that convert results and check type hints.

    Raises BadHandler for a type hint that cannot be sent; one that does not exist yet is checked later.
    """

    def check_hints() -> None:
        call.converters.check_required(serde)
        call.check_result(serde)

    if call.hints_are_known:
        check_hints()
    return {"check_hints": check_hints, "dump_result": _result_converter(call)}


def queue_converters(call: CallSignature, serde: Serde) -> dict[str, Any]:
    """Return the fields that convert data and results, as `task_converters` for a queue's handler."""
    name = call.positional_names[0]

    def check_hints() -> None:
        call.converters.check(serde, [name])
        call.check_result(serde)

    if call.hints_are_known:
        check_hints()
    dump = partial(call.dump_argument, name) if call.needs_converter(name) else None
    return {"check_hints": check_hints, "dump_result": _result_converter(call), "dump_data": dump}


def _result_converter(call: CallSignature) -> Callable[[Any], Any] | None:
    return call.dump_result if call.needs_converter("return") else None


def task_data_check(call: CallSignature, serde: Serde) -> DataCheck:
    """Return a function that raises Refused unless the payload has the arguments of a call of the task.

    `task.enqueue` always makes such a payload, but `task.queue.enqueue` takes any data.
    """

    def check(_: Any, payload: bytes) -> None:
        call.check_payload(serde, payload)

    return check


def queue_data_check(call: CallSignature, serde: Serde) -> DataCheck:
    """Return a function that raises Refused for data that would arrive changed at a queue's handler."""
    name = call.positional_names[0]

    def check(data: Any, payload: bytes) -> None:
        if call.needs_no_conversion(name, data):
            return
        try:
            arrived = call.convert_argument(name, decode_payload(serde, payload))
        except PermanentError as error:
            raise Refused(str(error), field="data") from error
        call.check_arrived_value(name, data, arrived, field="data")

    return check


def failure_argument_decoder(
    call: CallSignature, serde: Serde, task: CallSignature | None
) -> ArgumentDecoder:
    """Return a function that decodes a fail job to (failure) or (failure, job), as its handler takes them."""
    names = call.positional_names

    def arguments(job: Job) -> tuple[tuple[Any, ...], dict[str, Any]]:
        failure = build_failure(job, serde, task)
        return ((failure, CURRENT_JOB.get()) if len(names) > 1 else (failure,)), {}

    _check_parameter_count(call, names)
    return arguments


def decode_payload(serde: Serde, payload: bytes) -> Any:
    """Return the data of a payload. Raises PayloadMismatch if the serde cannot decode it."""
    try:
        return serde.decode(payload)
    except ValueError as error:
        raise PayloadMismatch(f"the serde {serde.name!r} cannot decode the payload: {error}") from error


def _check_parameter_count(call: CallSignature, names: list[str]) -> None:
    if not 1 <= len(names) <= 2:
        raise BadHandler(
            f"{call.function.__qualname__} has {len(names)} positional parameters; a handler has one or two: "
            "(data) or (data, job)"
        )
