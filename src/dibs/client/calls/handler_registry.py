"""Handlers: built from a function and its options, and registered by queue. The options of a task become the
limits of its handler and, with `every` or `cron`, its schedule.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar, cast

from attrs import evolve
from msgspec.structs import replace

from dibs.client.calls.bound_job import KeyFunction, TaskKey
from dibs.client.calls.current_job import CURRENT_JOB
from dibs.client.calls.failure import build_failure
from dibs.client.calls.handler import (
    ASYNC_SIZE,
    DEFAULT_LIMITS,
    FAILURE_LIMITS,
    SIZE,
    Executor,
    Handler,
    HandlerLimits,
    RunMiddleware,
    compose_run,
)
from dibs.client.calls.run_logs import LEVELS, LogLevel
from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.client.options.arguments import Seconds, duration_ms
from dibs.client.options.job_settings import (
    CallSettings,
    Retention,
    check_setting_names,
    deadline_ms,
    to_stored,
)
from dibs.client.options.queue_settings import QueueSettings, Rate, build_patch, declared_unit
from dibs.client.options.serde import Serde
from dibs.errors import BadHandler, DuplicateHandler, PermanentError, Refused
from dibs.model.check_arguments import check_choice
from dibs.model.check_values import check_optional_number
from dibs.model.job import FAIL_SUFFIX, Job, JobData
from dibs.model.limits import LIMITS
from dibs.model.requests import SettingsPatch, WhenFull
from dibs.model.retry import Backoff, check_backoff
from dibs.model.schedule import OVERLAPS, Every, Overlap, Schedule

if TYPE_CHECKING:
    from dibs.model.cron import Cron

S = TypeVar("S", bound="HandlerSettings")

_MAIN_MODULES = ("__main__", "__mp_main__")


def check_function(function: Any) -> None:
    """Raise BadHandler for a function that a worker in another process could not import or call."""
    name = getattr(function, "__qualname__", None)
    if not inspect.isfunction(function) or name is None:
        raise BadHandler(f"{function!r} cannot be a handler; write a function with `def` or `async def`")
    if function.__name__ == "<lambda>":
        raise BadHandler(
            "a lambda cannot be a handler, because a worker could not import it; write a `def` function"
        )
    if "<locals>" in name:
        raise BadHandler(
            f"{name} is defined inside a function, so a worker cannot import it; move it to the module level"
        )
    if "." in name:
        raise BadHandler(
            f"{name} is a method, and a worker has no object for it; "
            "write a function that creates the object and calls the method"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadHandler(
            f"{name} is a generator, but a job has one result; return it, and report progress for the steps"
        )


def check_parameter_names(function: Callable[..., Any]) -> None:
    """Raise BadHandler for a parameter that `task.enqueue(...)` could not pass by name."""
    one = inspect.signature(function).parameters.get("self") if callable(function) else None
    if one is not None and one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
        raise BadHandler(
            f"{function.__name__} has a parameter named 'self', which `enqueue` cannot pass, because it is "
            "a method itself; rename the parameter"
        )


def default_queue_name(function: Callable[..., Any]) -> str:
    """Return the default queue name of a function: module.function. Raises BadHandler in a notebook."""
    module = function.__module__
    if module in _MAIN_MODULES:
        module = _main_module_name(module, function.__name__)
    return f"{module}.{function.__name__}"


def _main_module_name(module: str, function: str) -> str:
    """Return the module name under which a worker imports the main program."""
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    if spec is not None and not spec.name.endswith("__main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None:
        raise BadHandler(
            f'{function} is defined in a program without a file, so it has no name; pass queue="..."'
        )
    from pathlib import Path  # noqa: PLC0415 - only a program without a module name needs it

    return Path(file).stem


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
    retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """Classes of errors that are retried; another error fails the job at once. Default: all."""
    no_retry_on: type[BaseException] | tuple[type[BaseException], ...]
    """Classes of errors that fail the job at once, also if `retry_on` has a base class. Default: none."""
    max_timeouts: int | None
    """Retries after a timeout; None is no limit. Default: 3."""
    max_stalls: int | None
    """Retries after the worker process died or its lease expired; None is no limit. Default: 3."""
    backoff: Backoff
    """Delay before a retry: Immediate(), Fixed(seconds) or Exponential(first, cap).

    Default: Exponential(2, 300)."""
    size: int
    """Capacity units one run takes, 1 to 100; a worker process has 100.

    Default: 1 for an `async def` on the event loop, so a process runs 100 at a time, else 10."""
    queue_priority: int
    """A worker serves queues with a higher number first. Default: 100."""
    executor: Executor
    """"auto" runs `async def` on the event loop and `def` on a thread; "process" runs each job in a process
    that runs only this job at the time. Default: "auto"."""
    capture_logs: LogLevel | None
    """The lowest level of records of `logging` that a run writes to its output: "DEBUG", "INFO", "WARNING",
    "ERROR" or "CRITICAL". Default: None, so it writes none."""
    max_active: int | None
    """Jobs of the queue that may be active at once over all workers; None is no limit. A worker writes it to
    the storage when it starts. Default: the setting of `queue.configure`."""
    per_key: int | None
    """Jobs of one key that may be active at once over all workers; None is no limit. A worker writes it to
    the storage when it starts. Default: the setting of `queue.configure`."""
    rate: Rate | str | None
    """The rate of starts over all workers, as in `Rate(5, per=1)` or "5/s"; None for no limit. A worker
    writes it to the storage when it starts. Default: the setting of `queue.configure`."""
    key_rate: Rate | str | None
    """The rate of starts of one key over all workers, as in `Rate(10, per=60)` or "10/m"; None for no limit.
    A worker writes it to the storage when it starts. Default: the setting of `queue.configure`."""
    max_waiting: int | None
    """Waiting jobs at which an enqueue makes no new one; None is no bound. A worker writes it to the storage
    when it starts. Default: the setting of `queue.configure`."""
    when_full: WhenFull
    """The answer to a new job at `max_waiting`: "refuse" raises QueueFull, "drop_new" drops the job. A worker
    writes it to the storage when it starts. Default: the setting of `queue.configure`."""
    fair: bool
    """True if the keys of the queue take turns. A worker writes it to the storage when it starts. Default:
    the setting of `queue.configure`."""
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
_QUEUE_SETTINGS: Final = (
    *("max_active", "per_key", "rate", "key_rate", "max_waiting", "when_full", "fair"),
    *("log_results", "retention"),
)
_SCHEDULING_SETTINGS: Final = ("size", "queue_priority", "executor", "strict_results")
_ERROR_SETTINGS: Final = ("retry_on", "no_retry_on")
_LIMIT_SETTINGS: Final = ("timeout", "max_retries", "max_timeouts", "max_stalls", "backoff")


class HandlerRegistry(dict[str, Handler]):
    """The handlers of an app by queue name; a queue has at most one."""

    def __init__(self, defaults: TaskSettings | None = None) -> None:
        """Raise Refused or BadHandler for a bad option in `defaults`, which are those of `with_defaults`."""
        super().__init__()
        self._defaults = {} if defaults is None else defaults
        if not isinstance(self._defaults, Mapping):
            raise Refused(
                f'defaults is {defaults!r:.60}; pass a mapping of options, as {{"timeout": "5m"}}',
                field="defaults",
            )
        check_setting_names(self._defaults, HANDLER_SETTINGS | TASK_JOB_SETTINGS)
        check_handler_settings(self._defaults)
        build_job_defaults(self._defaults)

    def with_defaults(self, settings: S, known: frozenset[str] = HANDLER_SETTINGS) -> S:
        """Return the options with the app's default for each of the `known` ones that they do not set."""
        defaults = {name: value for name, value in self._defaults.items() if name in known}
        return cast("S", {**defaults, **settings})

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
    is_async = inspect.iscoroutinefunction(function)
    return Handler(
        queue=queue,
        function=function,
        is_async=is_async,
        serde=serde,
        decode_arguments=decode_arguments,
        limits=build_limits(settings, defaults),
        queue_settings=_build_queue_settings(settings),
        unit=declared_unit(settings),
        **_run_options(settings, is_async=is_async),
    )


def check_handler_settings(settings: HandlerSettings) -> None:
    """Raise Refused or BadHandler for a bad value among the options of a handler."""
    build_limits(settings)
    _build_queue_settings(settings)
    declared_unit(settings)
    _run_options(settings, is_async=False)
    check_exact_arguments(settings)


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
    limits = {name: to_stored(name, settings[name]) for name in _LIMIT_SETTINGS if name in settings}
    if "backoff" in limits:
        check_backoff("backoff", limits["backoff"])
    return replace(defaults, **limits)


def _build_queue_settings(settings: HandlerSettings) -> SettingsPatch | None:
    declared = {name: settings[name] for name in _QUEUE_SETTINGS if name in settings}
    return build_patch(cast("QueueSettings", declared)) if declared else None


def _error_classes(name: str, value: object) -> tuple[type[BaseException], ...]:
    classes = value if isinstance(value, tuple) else (value,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise Refused(
                f"{name} has {each!r:.60}; it must be a class of exceptions, or a tuple of them", field=name
            )
    return classes


def _run_options(settings: HandlerSettings, *, is_async: bool) -> dict[str, Any]:
    check_optional_number("size", settings.get("size"), 1, 100)
    check_optional_number("queue_priority", settings.get("queue_priority"), -(2**31), 2**31)
    executor = settings.get("executor", "auto")
    if executor not in ("auto", "process"):
        raise BadHandler(f'executor is {executor!r}; it must be "auto" or "process"')
    strict = settings.get("strict_results", False)
    if not isinstance(strict, bool):
        raise Refused(f"strict_results is {strict!r:.60}; it must be True or False", field="strict_results")
    size = ASYNC_SIZE if is_async and executor == "auto" else SIZE
    classes = {name: _error_classes(name, settings[name]) for name in _ERROR_SETTINGS if name in settings}
    given = {name: settings[name] for name in _SCHEDULING_SETTINGS if name in settings}
    return {"size": size, "log_level": _log_level(settings.get("capture_logs"))} | given | classes


def _log_level(name: object) -> int | None:
    """Return the number of the level that `capture_logs` names. Raises Refused for an unknown name."""
    if name is None:
        return None
    if not isinstance(name, str) or name not in LEVELS:
        raise Refused(
            f"capture_logs is {name!r:.60}; it must be {', '.join(LEVELS)} or None, which captures nothing",
            field="capture_logs",
        )
    return LEVELS[name]


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


class TaskSettings(HandlerSettings, total=False):
    """Options of `@app.task(...)`: those of a handler, three for its jobs, and five for a periodic task."""

    priority: int
    """Priority of each job, -1000 to 1000; jobs of a higher priority run first. `task.options(priority=...)`
    replaces it for one job. Default: 0."""
    start_by: Seconds | None
    """Seconds from the enqueue, by the clock of that machine, from which no run of a job may start. A worker
    that claims it later cancels it. `task.options(start_by=...)` replaces it for one job. Default: None."""
    key: str | KeyFunction
    """The key of each job, for `per_key` and `key_rate`: the name of a parameter, or a function that takes
    the arguments of the call and returns text, a whole number, or None for no key. Default: no key."""
    every: Seconds
    """Interval of a periodic task: seconds, a timedelta, or text like "5m" or "1h30m". The task runs at the
    multiples of the interval since 1970 in UTC. Default: not periodic."""
    cron: str
    """Times of a periodic task: minute, hour, day of month, month, day of week, as in "0 3 * * *". Default:
    not periodic."""
    tz: str
    """Time zone of `cron`, as in "Europe/Berlin". Default: "UTC"."""
    catch_up: bool
    """True runs the task once after it missed ticks; False skips to the next tick. Default: True."""
    overlap: Overlap
    """The rule for a tick that falls due during a run of the task: "queue" runs the tick after that run,
    "skip" leaves the tick out, and "replace" asks the run to stop, then runs the tick. Default: "queue"."""


SCHEDULE_SETTINGS: Final = frozenset({"every", "cron", "tz", "catch_up", "overlap"})
#: Options of a task that each of its jobs gets, unless `task.options(...)` sets them.
TASK_JOB_SETTINGS: Final = frozenset({"priority", "start_by"})

_LONGEST_INTERVAL: Final = timedelta(days=3660)


def build_schedule(
    call: CallSignature, serde: Serde, settings: Mapping[str, Any], key: TaskKey | None = None
) -> Schedule | None:
    """Return the schedule of a task's options, or None without one. Raises Refused, BadHandler."""
    options = {name: settings[name] for name in SCHEDULE_SETTINGS if settings.get(name) is not None}
    if not options:
        return None
    if settings.get("start_by") is not None:
        raise Refused(
            "start_by is set for a periodic task, whose ticks the storage enqueues; leave it out",
            field="start_by",
        )
    for name in ("catch_up", "overlap"):
        if name in options and options.keys() <= {"catch_up", "overlap"}:
            raise Refused(f"{name} is set without a schedule; pass every or cron, too", field=name)
    schedule = schedule_of(options)
    payload = _payload_without_arguments(call, serde)
    data = JobData(
        payload=payload,
        priority=settings.get("priority", 0),
        key=None if key is None else key.derive((), {}),
    )
    return replace(schedule, data=data)


def schedule_of(options: Mapping[str, Any]) -> Schedule:
    """Return the schedule that SCHEDULE_SETTINGS describe, without the data of its jobs. Raises Refused."""
    times = build_times(options)
    catch_up, overlap = options.get("catch_up", True), options.get("overlap", "queue")
    if not isinstance(catch_up, bool):
        raise Refused(f"catch_up is {catch_up!r}; it must be True or False", field="catch_up")
    check_choice("overlap", overlap, OVERLAPS)
    return Schedule(times=times, catch_up=catch_up, overlap=overlap)


def build_times(options: Mapping[str, Any]) -> Every | Cron:
    """Return the times of `cron` and `tz`, or of `every`; None is no value. Raises Refused."""
    cron, every, tz = (options.get(name) for name in ("cron", "every", "tz"))
    if cron is not None and every is not None:
        raise Refused("every and cron are both set; pass only one", field="cron")
    if cron is not None:
        from dibs.model.cron import Cron  # noqa: PLC0415 - imports calendars and time zones, which only this option needs

        return Cron(cron, "UTC" if tz is None else tz)
    if tz is not None:
        raise Refused("tz is set without cron; pass cron, too, or leave tz out", field="tz")
    if every is None:
        raise Refused("cron and every are both missing; pass one of them", field="cron")
    return Every(interval_ms(every))


def build_job_defaults(settings: Mapping[str, Any]) -> CallSettings:
    """Return the options of a task that each of its jobs gets. Raises Refused."""
    check_optional_number("priority", settings.get("priority"), -LIMITS.priority, LIMITS.priority)
    if isinstance(settings.get("start_by"), datetime):
        raise Refused(
            "start_by of a task is a time after the enqueue; pass seconds, text such as '1h' or a timedelta "
            "here, and a datetime to task.options(start_by=...)",
            field="start_by",
        )
    deadline_ms("start_by", settings.get("start_by"))
    given = {name: settings[name] for name in TASK_JOB_SETTINGS if settings.get(name) is not None}
    return cast("CallSettings", given)


def interval_ms(every: Seconds) -> int:
    """Return an interval in ms. Raises Refused unless it is more than 0 and at most ten years."""
    ms = duration_ms("every", every)
    if not 1 <= ms <= duration_ms("every", _LONGEST_INTERVAL):
        raise Refused(f"every is {every}; it must be at least 1 ms and at most ten years", field="every")
    return ms


def _payload_without_arguments(call: CallSignature, serde: Serde) -> bytes:
    try:
        return call.encode_arguments(serde, (), {})
    except Refused as refused:
        name = call.function.__name__
        raise BadHandler(
            f"{name} is periodic, so it is called without arguments; "
            f"add a default to each parameter: {refused}"
        ) from None
