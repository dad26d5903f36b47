"""The job of the running handler: its fields, its progress, its steps and its follow-ups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Literal, Protocol

import msgspec
from attrs import frozen

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.run_logs import RunLogs, describe_left_out
from dibs.client.calls.run_output import RunOutput, encode_chunk
from dibs.client.calls.run_steps import Steps, StepsInTransactions, call_blocking, call_function
from dibs.client.calls.run_steps import step_key as make_step_key
from dibs.client.calls.signals import SignalWaits
from dibs.client.options.arguments import Seconds, utc_datetime
from dibs.client.options.serde import JSON, Serde
from dibs.errors import LeaseLost, NotRunning, Refused
from dibs.model.check_jobs import check_follow_ups
from dibs.model.check_values import check_bytes, check_whole_number
from dibs.model.job import Job
from dibs.model.limits import LIMITS, MOST_COST, START_COST
from dibs.model.requests import FollowUp
from dibs.model.results import ReportStatus
from dibs.model.schedule import refuse_hand_off
from dibs.storage.capabilities import Capabilities


class RunStorage(Protocol):
    """The part of a storage that a running job uses.

    A child process of the executor "process" has no connection to the storage. It implements this protocol
    with messages to its worker.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    async def report(
        self,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Sequence[bytes] = (),
    ) -> ReportStatus: ...


class FlowWorker(Protocol):
    """The part of a worker process that the evaluations of flows use."""

    def claim_soon(self, queue: str) -> None:
        """Claim from a queue without waiting for the storage, because a job was enqueued there."""

    def take_ends(self, flow_id: str) -> Mapping[str, bytes | None]:
        """Return the results of nodes that this process has completed since the last call, by job id."""


@frozen(eq=False)
class RunEnvironment:
    """The values that all runs of a queue in one process share."""

    storage: RunStorage
    #: Name of the queue.
    queue: str
    #: The event loop of the worker.
    loop: asyncio.AbstractEventLoop
    #: The value that the function under @app.lifespan yielded in this process.
    resources: Any = None
    serde: Serde = JSON
    #: Makes the object that stores steps in transactions of the caller, for a queue, id and fence.
    join: Callable[[RunStorage, str, str, int], StepsInTransactions] | None = None
    #: Called with the new value of `CurrentJob.waits`, in a child process of the executor "process".
    report_waits: Callable[[int], None] | None = None
    #: Called with the new value of `CurrentJob.amount_spent`, in such a child process.
    report_spent: Callable[[int], None] | None = None
    #: The amount that the rates of the queue count for the start of a run, in the unit of `CurrentJob.spent`.
    unit: int = START_COST
    #: The lowest level of log records that go to the output of the run; None for none.
    log_level: int | None = None
    #: The worker of this process; None in tests and in a child process of the executor "process".
    worker: FlowWorker | None = None


class CurrentJob:
    """The job of the running handler, returned by `current_job()`.

    In an `async def` handler await `progress`, `write` and `step`; in a `def` handler they block.
    """

    #: Jobs that the worker enqueues in the same atomic step if this run fails the job.
    failure_follow_ups: tuple[FollowUp, ...] = ()
    #: The number of waits of the handler for the ends of other jobs.
    waits: int = 0
    #: The sum of all calls of `spent`; None without a call.
    amount_spent: int | None = None
    #: The chunks of this run that are not sent yet; None before the first `write`.
    output: RunOutput | None = None

    # Few attributes, because the worker makes one object for each run, and most handlers do not read it.
    def __init__(self, environment: RunEnvironment, job: Job, deadline: float | None) -> None:
        run = job.run
        if run is None:
            queue = environment.queue
            raise NotRunning(f"{queue}/{job.id} is not active, so it has no CurrentJob; claim the job first")
        self._environment = environment
        self._job = job
        self._cancelled = run.cancel_requested
        self._began = time.monotonic()
        #: Jobs that the worker enqueues in the same atomic step as the completion of this run.
        self.follow_ups: tuple[FollowUp, ...] = ()
        #: True after `hand_off`.
        self.handed_off: bool = False
        self.fence: int = run.fence
        """Number of this run, which grows with each claim of the id.

        Pass it to other systems, so that they can refuse writes of an earlier run.
        """
        self.deadline: float | None = deadline
        """Time of the timeout, in seconds of time.monotonic(); None for a run without a timeout."""

    def __repr__(self) -> str:
        return f"<CurrentJob {self.queue}/{self.id} fence {self.fence}>"

    @property
    def queue(self) -> str:
        """Name of the queue."""
        return self._environment.queue

    @property
    def id(self) -> str:
        """Id of the job."""
        return self._job.id

    @property
    def resources(self) -> Any:
        """The value that the function under @app.lifespan yielded in this process."""
        return self._environment.resources

    @property
    def attempt(self) -> int:
        """Number of this claim of the job, from 1."""
        return self._job.attempts

    @property
    def retries(self) -> int:
        """Number of times the job returned to the queue after an error."""
        return self._job.retries

    @property
    def stalls(self) -> int:
        """Number of times the job returned to the queue because its worker was gone."""
        return self._job.stalls

    @property
    def timeouts(self) -> int:
        """Number of times the job returned to the queue after a timeout."""
        return self._job.timeouts

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the job at the time of the claim."""
        return {name: msgspec.json.decode(raw) for name, raw in self._job.data.attributes.items()}

    @property
    def enqueued_at(self) -> datetime:
        """Time of the enqueue, in UTC."""
        return utc_datetime(self._job.enqueued_at)

    @property
    def run_at(self) -> datetime:
        """Time from which the job might start, in UTC."""
        return utc_datetime(self._job.run_at)

    @property
    def cancelled(self) -> bool:
        """True after a cancel of this run. The handler may finish; the job does not return to the queue."""
        return self._cancelled

    def request_cancel(self) -> None:
        """Set `cancelled`. The worker calls it; to cancel a job use `queue.cancel(id, running=True)`."""
        self._cancelled = True

    def add_waits(self, number: int) -> None:
        """Add to `waits`. A wait in a handler calls it with 1 at its begin, and with -1 at its end."""
        self.waits += number
        if self._environment.report_waits is not None:
            self._environment.report_waits(self.waits)

    def spent(self, amount: int) -> None:
        """Say what this run has spent, for example tokens, in the unit of the rate of its task.

            current_job().spent(3_200)

        The rates of the queue then count this amount in place of the estimate `unit` that the start of the
        run has charged. Without a `unit` in `@app.task(rate=...)` or `key_rate`, 1,000 is one start. Several
        calls add up, and `spent(0)` gives the start back, for example before `Snooze`. It counts when the run
        ends or returns, however it does; not if its process dies.

        Raises Refused, a ValueError, for another value than a whole number from 0, and for a sum of more than
        1,000,000 starts.
        """
        unit = self._environment.unit
        before = self.amount_spent or 0
        check_whole_number("amount", amount, 0, MOST_COST * unit // START_COST - before)
        self.amount_spent = before + int(amount)
        if self._environment.report_spent is not None:
            self._environment.report_spent(self.amount_spent)

    @property
    def cost(self) -> int | None:
        """The cost of this run in thousandths of a start, rounded up; None without a call of `spent`."""
        spent = self.amount_spent
        return None if spent is None else -(-spent * START_COST // self._environment.unit)

    def progress(self, value: Any) -> Awaitable[None]:
        """Store the progress of the job, any JSON value of at most 1 MiB. `queue.get(id)` returns it.

            await job.progress({"percent": 40})

        Raises LeaseLost if the lease of the run has ended, Refused if JSON cannot encode the value.
        """
        raw = JSON.encode(value)
        check_bytes("progress", raw, LIMITS.progress)
        return self._run_on_worker_loop(self._report_progress(raw))

    async def _report_progress(self, raw: bytes) -> None:
        if await self._environment.storage.report(self.queue, self.id, self.fence, raw) == "lost":
            raise LeaseLost(f"{self.queue}/{self.id}: the lease has ended, so the progress was not stored")

    def write(self, value: Any) -> Awaitable[None]:
        """Append a value to the output of the job. `ticket.output()` and `queue.output(id)` yield it.

            await job.write("half of the pages are read")

        The value is encoded by the serde of the queue, and may have 64 KiB. Readers get each value once, in
        order, also those of an earlier run of the job. An id keeps the newest MiB, as long as its outcome.

        Values are sent together: after 50 ms, at 32 KiB, and before the run is settled. A process that is
        killed loses those of its last 50 ms.

        Raises LeaseLost if the lease of the run has ended, Refused for a value that is too large or that the
        serde cannot encode, and on a storage that keeps no output; the errors of a storage that was not
        available are raised by a later call.
        """
        if not self._environment.storage.capabilities.output:
            raise Refused(
                "this storage keeps no output (it does not claim the capability `output`); report progress "
                "instead, or use another storage",
                field="value",
            )
        chunk = encode_chunk("value", value, self._environment.serde)
        return self._run_on_worker_loop(self._write(chunk))

    async def _write(self, chunk: bytes) -> None:
        await self._open_output().write(chunk)

    def _open_output(self) -> RunOutput:
        if self.output is None:
            self.output = RunOutput(f"{self.queue}/{self.id}", self._report_output, self._note_left_out)
        return self.output

    def _note_left_out(self, number: int) -> bytes:
        return encode_chunk("log", describe_left_out(number, time.time()), self._environment.serde)

    @property
    def log_level(self) -> int | None:
        """The lowest level of log records that go to the output; None without the option `capture_logs`."""
        return self._environment.log_level

    def add_record(self, value: dict[str, str]) -> None:
        """Append a log record to the output. The handler of logging calls it, on any thread."""
        chunk = encode_chunk("log", value, self._environment.serde)
        loop = self._environment.loop
        if asyncio._get_running_loop() is loop:  # noqa: SLF001 - get_running_loop raises an error on a thread
            self._open_output().add(chunk)
        else:
            loop.call_soon_threadsafe(lambda: self._open_output().add(chunk))

    async def _report_output(self, chunks: Sequence[bytes]) -> bool:
        storage = self._environment.storage
        return await storage.report(self.queue, self.id, self.fence, output=chunks) != "lost"

    # -- steps ---------------------------------------------------------------------------------------

    def step(
        self, name: str, function: Callable[..., Any], *args: Any, connection: Any = None, **kwargs: Any
    ) -> Any:
        """Call `function(*args, **kwargs)` once for this job, and store its result for later runs.

        In an `async def` handler `await job.step("charge", pay, order)`; there a `def` function runs on a
        thread. In a `def` handler the call blocks and returns the result. A later run of the job gets the
        stored result without a call, for example after an error in a later step or the death of its
        process. A step whose process dies during the function, or before the result is stored, is called
        again: pass `step_key(name)` to systems that know idempotency keys.

        The result is encoded by the serde of the queue, and returned as it is decoded, converted to the
        return type of the function. All results of a job together may have 1 MiB. They stay until the job
        ends or an update replaces its data.

        A `connection` of psycopg, SQLAlchemy or Django stores the result in its transaction, if the storage
        is Postgres: what the function writes there, and the result, commit together. It is not passed to the
        function. Commit before the next step: until then the job is locked.

        Raises the error of the function, which stores nothing; LeaseLost if another worker may run the job;
        Refused, which fails the job without a retry, for a name that was used before in this run, or a
        result that cannot be stored; StorageError, OutcomeUnknown.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._step_blocking(name, function, args, kwargs, connection)
        return self._step(name, function, args, kwargs, connection)

    def wait_for(self, name: str, type: Any = Any, *, timeout: Seconds | None = None) -> Any:
        """Wait for a signal: a value that `queue.signal(id, name, value)` sends to this job.

            approval = await current_job().wait_for("approved", Approval, timeout="3d")

        In an `async def` handler await it; a `def` handler calls it. If a signal of this name has come, also
        before the wait, the call returns its value, converted to `type`. Otherwise the run ends here, and the
        job is *parked*: it holds no place in a worker, and counts no attempt. When the signal comes, the
        handler begins anew, and this call returns. So code before the wait runs again; put what must not run
        twice into `step`. Several waits for one name take its signals in their order.

        `timeout` is the time until SignalTimeout: seconds, text such as "3d", or a timedelta. It begins with
        the first wait. Default None: no end.

        The run ends by a BaseException, which a plain `except Exception` does not catch; `finally` blocks
        run.

        Raises SignalTimeout, a PermanentError; Refused, which fails the job without a retry, for a bad name,
        a bad timeout or a value that does not fit `type`; LeaseLost if another worker may run the job.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._wait_for_blocking(name, type, timeout)
        return self._wait_for(name, type, timeout)

    async def _wait_for(self, name: str, type: Any, timeout: Seconds | None) -> Any:
        if self._steps.has_open_step:
            await self._run_on_worker_loop(self._steps.settle_joined())
        found = self._waits.begin(name, type, timeout, self._storage_now())
        if found.is_new:
            await self._run_on_worker_loop(self._steps.store(found.key, found.raw))
        return found.result()

    def _wait_for_blocking(self, name: str, type: Any, timeout: Seconds | None) -> Any:
        if self._steps.has_open_step:
            self._run_on_worker_loop(self._steps.settle_joined())
        found = self._waits.begin(name, type, timeout, self._storage_now())
        if found.is_new:
            self._run_on_worker_loop(self._steps.store(found.key, found.raw))
        return found.result()

    def _storage_now(self) -> int:
        """Return the time of the storage in ms: that of the claim, and the time since then."""
        run = self._job.run
        claimed_at = 0 if run is None else run.claimed_at
        return claimed_at + int((time.monotonic() - self._began) * 1000)

    @cached_property
    def _waits(self) -> SignalWaits:
        return SignalWaits(self._job, self._environment.serde, self._steps)

    def step_key(self, name: str) -> str:
        """Return an idempotency key for a step, to pass to other systems: text of 32 hex digits.

            await job.step("charge", charge, "order-7", idempotency_key=job.step_key("charge"))

        It is the same in each run of this job, and different for each job, payload and name. It is made of
        the queue, the id, the first revision and the payload of the job, and the name. `retry_failed` makes a
        new job with other keys.
        """
        return make_step_key(self.queue, self._job, name)

    async def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        connection: Any,
    ) -> Any:
        if self._steps.has_open_step:
            await self._run_on_worker_loop(self._steps.settle_joined())
        step = self._steps.begin(name, function, connection)
        if step.is_stored:
            return step.stored_result()
        with step.trying():
            result = step.take_result(await call_function(function, args, kwargs))
        await self._run_on_worker_loop(step.store())
        return result

    def _step_blocking(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        connection: Any,
    ) -> Any:
        if self._steps.has_open_step:
            self._run_on_worker_loop(self._steps.settle_joined())
        step = self._steps.begin(name, function, connection)
        if step.is_stored:
            return step.stored_result()
        with step.trying():
            result = step.take_result(call_blocking(function, args, kwargs, self._environment.loop))
        if connection is not None and self._steps.transactions is not None:
            self._steps.transactions.wait(step.store(), self._environment.loop)
        else:
            self._run_on_worker_loop(step.store())
        return result

    @cached_property
    def _steps(self) -> Steps:
        transactions, join, storage = None, self._environment.join, self._environment.storage
        if join is not None and storage.capabilities.transactions:
            transactions = join(storage, self.queue, self.id, self.fence)
        return Steps(
            f"{self.queue}/{self.id}", self._job, self._environment.serde, self._report_memo, transactions
        )

    async def _report_memo(self, memo: bytes) -> bool:
        return await self._environment.storage.report(self.queue, self.id, self.fence, memo=memo) != "lost"

    # -- the end of the run --------------------------------------------------------------------------

    def hand_off(self) -> int:
        """Hand the job off when the handler returns: it stays active until `queue.finish` ends it.

            revision = job.hand_off()  # pass it to the program that calls queue.finish

        Returns the revision for `queue.finish(id, revision)`, which any process may call with the result.
        Until the handler has returned and the worker has stored the hand-off, `finish` answers "refused".
        The return value of the handler is ignored. A handler that raises an error is not handed off.

        Raises Refused after `then`: follow-ups belong to an end, and this run has none. Raises Refused for a
        job of `task.schedule`, too, because the end of its run enqueues the next one, and for a schedule with
        `overlap="replace"`.
        """
        refuse_hand_off(self._job)
        if self.follow_ups:
            raise Refused(
                "this run has follow-ups, which a hand-off cannot enqueue; leave out then", field="then"
            )
        self.handed_off = True
        return self._job.revision

    def then(self, bound: Bound[Any], *, on: Literal["completed", "failed"] = "completed") -> None:
        """Enqueue a job, made with `bind`, in the same atomic step as the end of this run.

            job.then(send.bind("bo@example.org"))

        By default the job is enqueued if this run completes; with on="failed" if this run fails the job for
        good, by an error or its timeout. If the process of the handler dies, its follow-ups are lost.

        Raises Refused if the job is not allowed, if it is for another queue and the storage does not have the
        capability `cross_queue`, or after `hand_off`.
        """
        if on not in ("completed", "failed"):
            raise Refused(f'on is {on!r:.60}; it must be "completed" or "failed"', field="on")
        if self.handed_off and on == "completed":
            raise Refused("this run is handed off, so it has no end here; leave out then", field="then")
        if bound.queue != self.queue and not self._environment.storage.capabilities.cross_queue:
            raise Refused(
                f"this storage cannot enqueue to {bound.queue!r} in one step with the end of a job of "
                f"{self.queue!r}; enqueue it in the handler instead",
                field="then",
            )
        follow_up = bound.as_follow_up()
        check_follow_ups([follow_up])
        if on == "failed":
            self.failure_follow_ups = (*self.failure_follow_ups, follow_up)
        else:
            self.follow_ups = (*self.follow_ups, follow_up)

    def _run_on_worker_loop(self, work: Coroutine[Any, Any, None]) -> Awaitable[None]:
        """Start `work` on the event loop of the worker, and return an awaitable for its end.

        A `def` handler runs on a thread without an event loop. There, wait for `work` before returning.
        """
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(work, self._environment.loop).result()
            return _CompletedAwaitable()
        if running is self._environment.loop:
            return work
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._environment.loop))


class _CompletedAwaitable:
    """The awaitable that `progress` returns in a `def` handler: the progress is stored already."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


#: The job of the running handler, for `current_job()`. The worker sets it before it decodes the payload.
CURRENT_JOB: Final[ContextVar[CurrentJob]] = ContextVar("dibs_current_job")
#: The handler of logging that appends records to the output of the run of its context.
RUN_LOGS: Final = RunLogs(lambda: CURRENT_JOB.get(None))


def current_job() -> CurrentJob:
    """Return the job of the running handler. Raises NotRunning outside a handler."""
    try:
        return CURRENT_JOB.get()
    except LookupError:
        raise NotRunning(
            "no job is running here: call current_job() inside a handler that a worker runs"
        ) from None


def flow_worker() -> FlowWorker | None:
    """Return the worker that runs this handler; None outside a worker process."""
    job = CURRENT_JOB.get(None)
    return None if job is None else job._environment.worker  # noqa: SLF001 - no part of the public face


@contextmanager
def counted_wait() -> Iterator[None]:
    """Count the block as a wait of the running handler, if there is one, for the end of another job."""
    job = CURRENT_JOB.get(None)
    if job is None:
        yield
        return
    job.add_waits(1)
    try:
        yield
    finally:
        job.add_waits(-1)
