"""Bulk tasks: one call of a function for many jobs, which stay jobs of their own.

Each job has a run of its own, whose handler is `BulkHandler.run`: it hands its item over and waits for its
result. So each job keeps its fence, retries, limits and outcome, and the storage knows nothing of the calls.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, ContextVar, copy_context
from random import uniform
from typing import Any, Final, get_args, get_origin, get_type_hints

from attrs import define, field

from dibs.client.calls.current_job import CURRENT_JOB, CurrentJob
from dibs.client.calls.run_steps import call_function
from dibs.client.options.arguments import Seconds, duration_seconds
from dibs.errors import BadHandler, BulkFailed, NotRunning, Refused, Snooze
from dibs.model.check_values import check_whole_number

#: The error of a job, or None, and its result. A future raises no StopIteration, so the run raises the error.
_Result = asyncio.Future[tuple[BaseException | None, Any]]

#: Most jobs of one call: a worker process has 100 units of capacity, and a run takes one at least.
MOST_JOBS: Final = 100
#: Longest time in seconds that a call waits for more jobs.
LONGEST_WAIT: Final = 60.0

_CURRENT_JOBS: Final[ContextVar[tuple[CurrentJob, ...]]] = ContextVar("dibs_current_jobs")


def current_jobs() -> tuple[CurrentJob, ...]:
    """Return the jobs of the running call of a bulk task, in the order of its list.

        for job, line in zip(current_jobs(), lines):
            await job.progress({"line": line})

    Raises NotRunning outside the function of a bulk task.
    """
    try:
        return _CURRENT_JOBS.get()
    except LookupError:
        raise NotRunning("no bulk task is running here; another handler calls current_job()") from None


@define(eq=False)
class _Call:
    """One call of the function: first open for more jobs, then running, then ended."""

    loop: asyncio.AbstractEventLoop
    items: list[Any] = field(factory=list)
    jobs: list[CurrentJob] = field(factory=list)
    results: list[_Result] = field(factory=list)
    #: The jobs whose runs were cancelled while the function ran.
    cancelled: int = 0
    task: asyncio.Task[None] | None = None

    def add(self, item: Any, job: CurrentJob) -> _Result:
        self.items.append(item)
        self.jobs.append(job)
        self.results.append(self.loop.create_future())
        return self.results[-1]

    def remove(self, result: _Result) -> None:
        index = self.results.index(result)
        del self.items[index], self.jobs[index], self.results[index]


class BulkHandler:
    """The handler of a bulk task: collects the items of runs, and calls the function with them."""

    def __init__(self, function: Callable[..., Any], queue: str, most: int, wait: float) -> None:
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._queue, self._most, self._wait = queue, most, wait
        self._open: _Call | None = None
        self._is_alone = False

    async def run(self, item: Any) -> Any:
        """Return the result of one job, or raise its error.

        Outside a worker, call the function with this item alone.
        """
        job = CURRENT_JOB.get(None)
        if job is None or job.queue != self._queue:
            return self._check(await call_function(self.function, ([item],), {}), 1)[0]
        if job.stalls:
            return await self._run_alone(item, job)
        call, loop = self._open, asyncio.get_running_loop()
        if call is None or call.loop is not loop:
            call = self._open = _Call(loop)
            loop.call_later(self._wait, self._start, call)
        result = call.add(item, job)
        if len(call.items) == self._most:
            self._start(call)
        return await self._result_of(call, result)

    async def _run_alone(self, item: Any, job: CurrentJob) -> Any:
        """Call the function with one job, whose process has died: this job may kill its process.

        Only one such call runs at a time. The other jobs go back to the queue meanwhile, because a job that
        has entered its handler stalls with the process.
        """
        if self._is_alone:
            delay = uniform(0.05, 1)  # noqa: S311 - no secret
            raise Snooze("a job whose process has died runs alone", delay=delay)
        self._is_alone = True
        try:
            call = _Call(asyncio.get_running_loop())
            result = call.add(item, job)
            self._start(call)
            return await self._result_of(call, result)
        finally:
            self._is_alone = False

    async def _result_of(self, call: _Call, result: _Result) -> Any:
        try:
            error, value = await asyncio.shield(result)
        except asyncio.CancelledError:
            await self._leave(call, result)
            raise
        if error is not None:
            raise error
        return value

    def _start(self, call: _Call) -> None:
        if call is self._open:
            self._open = None
        if call.task is None and call.items:
            call.task = call.loop.create_task(self._perform(call), context=_context_of(call))

    async def _leave(self, call: _Call, result: _Result) -> None:
        """Take a cancelled run out of a call. If the function has its item, wait until the function ends.

        An `async def` is cancelled when all its runs are; nothing stops a thread. If the run ended before the
        function, the next run of its id could begin beside it.
        """
        if call.task is None:
            call.remove(result)
            return
        call.cancelled += 1
        if self._is_async and call.cancelled == len(call.items):
            call.task.cancel()
        while not call.task.done():
            try:
                await asyncio.wait([call.task])
            except asyncio.CancelledError:
                continue

    async def _perform(self, call: _Call) -> None:
        try:
            given = await call_function(self.function, (list(call.items),), {})
            results: Sequence[Any] = self._check(given, len(call.items))
            errors: Mapping[int, BaseException] = {}
        except BulkFailed as failed:
            errors, results = failed.errors, failed.results or [None] * len(call.items)
            if misfit := _misfit(failed, len(call.items)):
                errors = dict.fromkeys(range(len(call.items)), TypeError(misfit))
        except BaseException as error:  # noqa: BLE001 - SystemExit ends the runs, not the worker
            errors, results = dict.fromkeys(range(len(call.items)), error), ()
        for index, future in enumerate(call.results):
            error_of_job = errors.get(index)
            future.set_result((error_of_job, None if error_of_job is not None else results[index]))

    def _check(self, given: Any, jobs: int) -> Sequence[Any]:
        if given is None:
            return [None] * jobs
        if not isinstance(given, Sequence) or isinstance(given, (str, bytes)) or len(given) != jobs:
            shown = f"{len(given)} results" if isinstance(given, (list, tuple)) else repr(given)[:60]
            raise TypeError(
                f"{self.function.__name__} got {jobs} jobs and returned {shown}; "
                "return a list with one result for each, or None"
            )
        return given


def _misfit(failed: BulkFailed, jobs: int) -> str:
    """Return what is wrong with the numbers of a BulkFailed; "" if they fit."""
    if wrong := [index for index in failed.errors if index not in range(jobs)]:
        return f"BulkFailed names the job {wrong[0]!r} of a call with {jobs}; the first one is 0"
    if others := [error for error in failed.errors.values() if not isinstance(error, BaseException)]:
        return f"BulkFailed has {others[0]!r:.60} as an error; give an exception"
    if failed.results is not None and len(failed.results) != jobs:
        return f"BulkFailed has {len(failed.results)} results for {jobs} jobs; give one for each"
    return ""


def _context_of(call: _Call) -> Context:
    """Return the context of the running handler, with the jobs of a call instead of its own job."""
    context = Context()
    for variable, value in copy_context().items():
        if variable is not CURRENT_JOB:
            context.run(variable.set, value)
    context.run(_CURRENT_JOBS.set, tuple(call.jobs))
    return context


def build_bulk_function(
    function: Callable[..., Any], queue: str, most: int, wait: Seconds
) -> Callable[..., Any]:
    """Return an `async def` function of one item for a function of a list of items.

    Raises BadHandler for a function that does not take one list, Refused naming `most` or `wait`.
    """
    check_whole_number("most", most, 1, MOST_JOBS)
    seconds = duration_seconds("wait", wait)
    if not 0 <= seconds <= LONGEST_WAIT:
        raise Refused(f"wait is {wait!r}; it must be 0 to {LONGEST_WAIT:g} seconds", field="wait")
    parameter, item, result = _read_hints(function)
    handler = BulkHandler(function, queue, most, seconds)

    async def run(item: Any) -> Any:
        return await handler.run(item)

    functools.update_wrapper(run, function)
    # Its signature is another one than that of the function.
    del run.__dict__["__wrapped__"]
    run.__annotations__ = {parameter: item, "return": result}
    one = inspect.Parameter(parameter, inspect.Parameter.POSITIONAL_ONLY, annotation=item)
    run.__dict__["__signature__"] = inspect.Signature([one], return_annotation=result)
    return run


def _read_hints(function: Callable[..., Any]) -> tuple[str, Any, Any]:
    """Return the name of the parameter, the type of an item, and that of a result."""
    name = function.__name__
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise BadHandler(
            f"{name}: the type hint {error.name!r} does not exist yet; define it above the bulk task"
        ) from error
    parameters = list(inspect.signature(function).parameters)
    if len(parameters) != 1 or get_origin(hints.get(parameters[0])) is not list:
        raise BadHandler(
            f"{name} must take one list, with the type of its items, as in `def {name}(lines: list[str])`"
        )
    returned = hints.get("return", Any)
    if returned not in (Any, None, type(None)) and get_origin(returned) is not list:
        raise BadHandler(f"{name} must return a list with one result for each job, or None")
    return parameters[0], get_args(hints[parameters[0]])[0], (get_args(returned) or (returned,))[0]
