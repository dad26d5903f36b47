"""The app: a storage URL, the queues and tasks declared on it, and its workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from dibs.client.calls.bulk import build_bulk_function
from dibs.client.calls.handler import PROCESS_UNITS, EnqueueMiddleware, RunMiddleware, compose_enqueue
from dibs.client.calls.handler_registry import (
    HandlerRegistry,
    TaskSettings,
    check_function,
    default_queue_name,
)
from dibs.client.connection.call_limits import DEFAULT_CALL_TIMEOUT, DEFAULT_MAX_PENDING, check_call_timeout
from dibs.client.connection.queue_client import QueueClients
from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.options.arguments import (
    DEFAULT_GRACE,
    DEFAULT_KEEP,
    DEFAULT_LEASE,
    DEFAULT_OPEN_FOR,
    DEFAULT_POLL,
    Seconds,
    duration_seconds,
)
from dibs.client.options.serde import Serde
from dibs.client.queue import Queue
from dibs.client.task import AsyncTask, BulkTaskDecorator, Task, TaskDecorator, declare_task
from dibs.client.work_report import WorkReport
from dibs.client.worker_info import WorkerInfo, read_workers
from dibs.errors import BadHandler, ConfigurationError, Refused, UnknownTask
from dibs.model.check_jobs import check_enqueue_queue
from dibs.model.check_values import check_is_text
from dibs.model.wakeup import EVALUATIONS, FLOWS
from dibs.model.worker_record import without_reserved
from dibs.storage.protocol import Storage
from dibs.storage.registry import client_options, open_storage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dibs.client.calls.bound_job import Bound
    from dibs.client.sync.app import BlockingDibs
    from dibs.client.task import TaskEnqueuer
    from dibs.client.work_report import StopRequests
    from dibs.flow.batch.batch import Batch
    from dibs.flow.batch.stored_batch import StoredBatch
    from dibs.flow.builder import Chain, Flow, FlowSettings
    from dibs.flow.context import FlowContext
    from dibs.flow.stored_flow import StoredFlow

P = ParamSpec("P")
R = TypeVar("R")
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
L = TypeVar("L", bound=Callable[[], AsyncIterator[Any]])
Until = Literal["stopped", "empty", "idle"]

#: The function behind `app.work`, as module:name. `app.work` imports it when it is called, because
#: the worker imports the client and a second import in the other direction would be a circle.
WORKER_FUNCTION = "dibs.worker:run"


class Dibs:
    """A job queue at a storage URL: an app declares queues and tasks, enqueues jobs and runs workers.

    Without `url` the app uses $DIBS_URL, or else `url` under [tool.dibs] in the nearest pyproject.toml.
    `call_timeout` is the deadline of each call to the storage: seconds, text such as "5s", or a timedelta;
    None is no limit. After it the call raises StorageBusy if surely nothing was written, else OutcomeUnknown.
    Waits, feeds, receivers and workers have their own limits. `max_pending`: `enqueue` calls that may be
    pending at a time on an event loop; later ones wait. `flows`: True to use flows, chains and batches; the
    workers of the app then also serve the two queues of flows. `defaults`: options of each task and handler
    of this app that does not set them, as in `{"timeout": "5m", "strict_results": True}`; failure handlers
    have defaults of their own. `options` are passed to the storage.

    The storage opens at the first use, or with `async with app`. After `close` every use raises NotRunning
    until the app is opened again.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        call_timeout: Seconds | None = DEFAULT_CALL_TIMEOUT,
        max_pending: int = DEFAULT_MAX_PENDING,
        flows: bool = False,
        defaults: TaskSettings | None = None,
        **options: Any,
    ) -> None:
        if url is not None and not isinstance(url, str):
            raise ConfigurationError(f"url is of type {type(url).__name__}; it must be text, as file:./jobs")
        self._storage_handle = StorageHandle(url, options, check_call_timeout(call_timeout), max_pending)
        self.handlers: HandlerRegistry = HandlerRegistry(defaults)
        """The handler of each queue, by queue name. A failure handler has the name `queue!fail`."""
        self.lifespan_function: Lifespan | None = None
        """The function declared with @app.lifespan; each worker process enters it once."""
        self._running_works: set[StopRequests] = set()
        self._clients = QueueClients(self._storage_handle)
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._flow_context: FlowContext | None = None
        if flows:
            from dibs.flow.context import FlowContext  # noqa: PLC0415 - keeps `import dibs` fast
            from dibs.flow.running.evaluation import register_flow_handlers  # noqa: PLC0415 - the same

            decoder_of = self._result_decoder
            self._flow_context = FlowContext(self._storage_handle, self._clients, self.handlers, decoder_of)
            register_flow_handlers(self._flow_context)

    @classmethod
    def from_redis(cls, client: Any, **options: Any) -> Self:
        """Return an app with the connection settings of a client of redis-py, for example `Redis(...)`.

            app = Dibs.from_redis(Redis(host="localhost"), prefix="shop")

        The client may be a `Redis`, a `RedisCluster` or a pool, blocking or asyncio. The app opens
        connections of its own, and neither uses nor closes those of the client. `options` are those of a
        redis: URL, such as `prefix`.

        Raises ConfigurationError for another object, and for a setting that the app cannot use.
        """
        return cls._from_client(client, "redis", options)

    @classmethod
    def from_pool(cls, pool: Any, **options: Any) -> Self:
        """Return an app with the connection settings of a pool of redis-py or of psycopg_pool.

            app = Dibs.from_pool(ConnectionPool(), prefix="shop")

        The app opens connections of its own, and neither uses nor closes those of the pool. `options` are
        those of the URL, such as `prefix` or `schema`, and `max_connections`.

        Raises ConfigurationError for another object, and for a setting that the app cannot use.
        """
        return cls._from_client(pool, "", options)

    @classmethod
    def _from_client(cls, client: object, package: str, options: dict[str, Any]) -> Self:
        url, settings = client_options(client, package)
        return cls(url, **settings, **options)

    def __repr__(self) -> str:
        return f"<Dibs of {self._storage_handle.redacted_url}>"

    @property
    def sync(self) -> BlockingDibs:
        """This app with blocking methods; its queues, tasks, tickets and claims block, too."""
        from dibs.client.sync.app import BlockingDibs  # noqa: PLC0415 - async programs never load it

        return BlockingDibs(self)

    @property
    def url(self) -> str:
        """The storage URL with its password; do not log or print it. Raises NoStorage if there is no URL."""
        return self._storage_handle.url

    @property
    def storage(self) -> Storage:
        """The open storage. Raises NotRunning before the first use and after `close`."""
        return self._storage_handle.opened.storage

    async def open(self) -> None:
        """Open the storage. Call `close` once for each `open`.

            await app.open()
            try:
                await send.enqueue("ada@example.org")
            finally:
                await app.close()

        Raises NoStorage if no URL was given anywhere, StorageError if the storage cannot be opened.
        """
        await self._storage_handle.enter()

    async def close(self) -> None:
        """Close the storage if every other `open` and `async with` block has ended, too."""
        await self._storage_handle.leave()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @asynccontextmanager
    async def using(self, url: str, **options: Any) -> AsyncIterator[Self]:
        """Open another storage for a block: `async with app.using("memory:"):`. Useful in tests.

            async with app.using("memory:"):
                await send.enqueue("ada@example.org")

        After the block the app uses its former storage again. dibs.testing also offers a clock that the
        test moves, and runs jobs without a worker.
        """
        with self.override_storage(open_storage(url, **options)):
            async with self:
                yield self

    def override_storage(self, storage: Storage) -> AbstractContextManager[None]:
        """Use another storage for a block: `with app.override_storage(storage):`.

            with app.override_storage(open_storage("memory:")):
                await send.enqueue("ada@example.org")

        The app opens that storage at the first use, or with `async with app`. After the block the app uses
        its former storage again.
        """
        return self._storage_handle.override(storage)

    def middleware(
        self, *, enqueue: EnqueueMiddleware | None = None, run: RunMiddleware | None = None
    ) -> None:
        """Wrap each enqueue, each run, or both in a context manager, as tracing does.

            @asynccontextmanager
            async def with_tenant(queue, requests):
                print(f"{len(requests)} jobs for {queue}")
                yield requests

            app.middleware(enqueue=with_tenant)

        - `enqueue(queue, requests)` returns an async context manager that yields the requests to send.
        - `run(job)` returns a context manager. A worker enters it around each call of a handler, with the
          CurrentJob, in every process that imports this app.

        Each call adds a middleware; the middleware that was added last is the outermost.
        """
        for field, middleware in (("enqueue", enqueue), ("run", run)):
            if middleware is not None and not callable(middleware):
                raise Refused(f"{field} is {middleware!r:.60}; pass a function", field=field)
        if enqueue is not None:
            self._storage_handle.enqueue_middleware = compose_enqueue(
                enqueue, self._storage_handle.enqueue_middleware
            )
        if run is not None:
            self.handlers.add_middleware(run)

    # -- declare -------------------------------------------------------------------------------------

    def queue(self, name: str, *, serde: Serde | None = None) -> Queue:
        """Return the queue of this name.

            await app.queue("mails").enqueue({"to": "ada@example.org"})

        `serde` encodes the data and results of the queue; the default is JSON. Pass it in the first call
        for a queue; later calls return a queue with the same serde.

        Raises Refused if the name is not allowed, ConfigurationError if the queue has another serde.
        """
        check_is_text("queue", name)
        task = self._tasks.get(name)
        return task.queue if task and serde is None else Queue(self._clients.get(name, serde), self.handlers)

    async def queues(self) -> Sequence[Queue]:
        """Return the queues that the storage knows, also those of other apps and failure handlers.

            for queue in await app.queues():
                print(queue.name, (await queue.counts()).waiting)

        A queue is known once it was used or configured, and the list may lag behind (contract 3, queues).
        """
        storage = (await self._storage_handle.ensure_open()).bounded
        return [self.queue(info.name) for info in without_reserved(await storage.queues())]

    async def workers(self, *, runs: bool = False) -> Sequence[WorkerInfo]:
        """Return the workers that live, by name. `runs`: True also reads the active jobs of each.

            for worker in await app.workers(runs=True):
                print(worker.name, [run.id for run in worker.runs])

        A worker is listed from a second after its start, and a dead one for at most three times its lease.
        """
        return await read_workers((await self._storage_handle.ensure_open()).bounded, runs=runs)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, *, queue: str | None = None, serde: Serde | None = None, **settings: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    # mypy does not accept unpacked settings for the keywords of the overloads above.
    def task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str | None = None,
        serde: Serde | None = None,
        **settings: Unpack[TaskSettings],
    ) -> Any:
        """Declare a function as a task, which has a queue: `@app.task` or `@app.task(timeout=30)`.

            @app.task(timeout="5m", max_retries=3)
            async def welcome(address: str) -> str:
                return f"sent to {address}"

            ticket = await welcome.enqueue("ada@example.org")

        The options, each with its default:

        - `queue`: name of the task's queue; default "module.function".
        - `serde`: encodes arguments and results; default JSON.
        - `timeout`: seconds one run may take, text such as "5m", or a timedelta; None is no limit.
          Default 60.
        - `max_retries`: number of retries after an error; 10 retries are 11 runs. None is no limit.
          Default 10.
        - `retry_on`: classes of errors that are retried, as in (TimeoutError, OSError); another error fails
          the job at once. Default: all.
        - `no_retry_on`: classes of errors that fail the job at once, as in ValueError. Default: none.
        - `max_timeouts`: number of retries after a timeout; None is no limit. Default 3.
        - `max_stalls`: number of retries after the worker process died; None is no limit. Default 3.
        - `backoff`: delay before a retry: Immediate(), Fixed(seconds) or Exponential(first, cap).
          Default Exponential(2, 300).
        - `size`: capacity units one run takes, 1 to 100; a worker process has 100. Default 1 for an
          `async def` on the event loop, so a process runs 100 of its jobs at a time, else 10.
        - `queue_priority`: a worker serves queues with a higher number first. Default 100.
        - `executor`: "auto" runs `async def` on the event loop and `def` on a thread; "process" runs each
          job in a process that runs only this job at the time, on its main thread. Default "auto".
        - `capture_logs`: lowest level of the records of `logging` that a run writes to its output: "DEBUG",
          "INFO", "WARNING", "ERROR" or "CRITICAL"; None is none. Default None.
        - `max_active`: jobs of the task that may be active at once over all workers; None is no limit.
        - `key`: key of each job: the name of a parameter, or a function that takes the arguments of the call
          and returns text, a whole number, or None for no key. Default: no key.
        - `per_key`: jobs of one key that may be active at once over all workers; None is no limit.
        - `rate`: how often runs may start over all workers, as in "5/s" or Rate(5, per=1); None is no limit.
        - `key_rate`: how often runs of one key may start, as in "10/m" or Rate(10, per=60); None is no limit.
        - `max_waiting`: waiting jobs at which an enqueue makes no new one; None is no bound.
        - `when_full`: "refuse" raises QueueFull at `max_waiting`, "drop_new" drops the new job.
        - `fair`: whether the keys take turns, so that no key waits behind all jobs of another one.
        - `log_results`: longest result that the log keeps, in bytes, at most 4,096; 0 is none.
        - `retention`: how long the queue keeps outcomes: seconds, None for ever, or a Retention. Workers
          write `max_active`, `per_key`, `rate`, `key_rate`, `max_waiting`, `when_full`, `fair`,
          `log_results` and `retention` to the storage when they start. Default of each: the setting of
          `queue.configure`.
        - `exact_arguments`: True refuses an enqueue whose arguments would arrive changed, for example without
          a field that a model excludes; False sends them. Default True.
        - `strict_results`: True fails a run whose result cannot be stored; False completes it, and keeps the
          `repr` of the result. Default False.
        - `priority`: priority of each job, -1000 to 1000; a higher number starts first. Default 0.
        - `start_by`: seconds from the enqueue from which no run may start; a worker that claims the job later
          cancels it. Default: no deadline.
        - `every`: interval of a periodic task, in seconds, as a timedelta, or as text like "5m" or "1h30m".
          It runs at the multiples of the interval since 1970 in UTC. Default: not periodic.
        - `cron`: times of a periodic task: minute, hour, day of month, month, day of week, as in
          "0 3 * * *". Default: not periodic.
        - `tz`: time zone of `cron`, as in "Europe/Berlin". Default "UTC".
        - `catch_up`: True runs a periodic task once after it missed ticks; False skips to the next tick.
          Default True.
        - `overlap`: what becomes of a tick that falls due during a run: "queue" runs it after that run,
          "skip" leaves it out, and "replace" asks the run to stop and then runs the tick. Default "queue".

        Raises BadHandler if a worker could not import the function, Refused naming a setting that is not
        allowed, DuplicateHandler if the queue has a handler already.
        """

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            check_function(function)
            name = default_queue_name(function) if queue is None else queue
            return self._declare(function, name, serde, settings)

        return TaskDecorator(declare) if function is None else declare(function)

    def bulk_task(
        self,
        *,
        most: int = 100,
        wait: Seconds = 0.1,
        queue: str | None = None,
        serde: Serde | None = None,
        **settings: Unpack[TaskSettings],
    ) -> BulkTaskDecorator:
        """Declare a function that is called with a list of jobs: `@app.bulk_task(most=100)`.

            @app.bulk_task(most=50, wait=0.5)
            async def embed(texts: list[str]) -> list[list[float]]:
                return await model.embed(texts)

            ticket = await embed.enqueue("one text")

        Each call gets the arguments of up to `most` jobs that this process has claimed. It begins when it has
        `most`, or `wait` seconds after its first job. The function returns one result for each job in the
        same order, or None, or raises BulkFailed with the errors of some; another error is that of all. Each
        job keeps its own id, limits, retries and outcome. After its process died, a job is called alone.

        - `most`: jobs of one call, 1 to 100. Default 100.
        - `wait`: seconds that a call waits for more jobs; 0 to 60, part of the `timeout`. Default 0.1.
        - The other options are those of `task`.

        Raises BadHandler for a function that does not take one list, and the errors of `task`.
        """
        if settings.get("executor", "auto") != "auto":
            raise BadHandler("a bulk task runs in the worker process; leave out executor")
        size = settings.get("size", 1)
        if most * size > PROCESS_UNITS:
            raise Refused(
                f"most is {most}, but a process has {PROCESS_UNITS} units, and runs no more than "
                f"{PROCESS_UNITS // size} jobs of size {size} at a time",
                field="most",
            )

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            check_function(function)
            name = default_queue_name(function) if queue is None else queue
            return self._declare(build_bulk_function(function, name, most, wait), name, serde, settings)

        return BulkTaskDecorator(declare)

    def _declare(
        self, function: Callable[..., Any], name: str, serde: Serde | None, settings: TaskSettings
    ) -> Task[Any, Any]:
        check_enqueue_queue(name)
        client = self._clients.get(name, serde)
        self._tasks[name] = declare_task(client, function, self.handlers, settings)
        return self._tasks[name]

    def get_task(self, name: str) -> Task[Any, Any]:
        """Return the task whose queue has this name. Raises UnknownTask, which lists the known tasks.

        Example: `await app.get_task("send").enqueue("ada@example.org")`
        """
        if name not in self._tasks:
            known = ", ".join(sorted(self._tasks)) or "none"
            raise UnknownTask(f"no task {name!r} is declared on this app; the declared tasks are: {known}")
        return self._tasks[name]

    def _result_decoder(self, name: str) -> Callable[[bytes], Any]:
        """Return the decoder of results of a queue: that of its task, if this app has it."""
        task = self._tasks.get(name)
        if task is None:
            return self._clients.get(name, None).serde.decode
        return task._decode_result  # noqa: SLF001 - no part of the public face of a task

    def lifespan(self, function: L) -> L:
        """Declare an async generator that yields once: a worker process runs it around all its jobs.

            @app.lifespan
            async def resources():
                async with open_pool() as pool:
                    yield pool  # handlers get it as current_job().resources

        The part before the yield runs before the first claim of each worker process, for example to open a
        connection pool. Handlers get the yielded value as `current_job().resources`. The part after the
        yield runs when the process ends. Raises BadHandler for a second lifespan.
        """
        if self.lifespan_function is not None:
            raise BadHandler("this app has a lifespan already; call both functions from one lifespan")
        if not callable(function):
            raise BadHandler(
                f"{function!r:.60} cannot be a lifespan; write an async generator that yields once"
            )
        self.lifespan_function = asynccontextmanager(function)
        return function

    # -- flows ----------------------------------------------------------------------------------------

    def _require_flows(self) -> FlowContext:
        if self._flow_context is None:
            raise ConfigurationError(
                "this app has no flows; make it with Dibs(url, flows=True), whose workers also serve the "
                f"queues {FLOWS!r} and {EVALUATIONS!r}"
            )
        return self._flow_context

    def flow(
        self, id: str | None = None, *, keep: Seconds | None = DEFAULT_KEEP, **settings: Unpack[FlowSettings]
    ) -> Flow:
        """Return a new, empty flow. Add jobs that wait for each other, and enqueue all of them together.

            flow = app.flow("album-42")
            small = [flow.add(resize.bind(image)) for image in ("a.png", "b.png")]
            flow.add(send.bind("ada@example.org"), after=small)
            ticket = await flow.enqueue()

        - `id`: id of the flow, 1 to 480 bytes; default: a generated one, which sorts by time.
        - `keep`: seconds that the outcome of each node is kept at least, for its dependents and the status;
          None is for ever. Default 7 days.
        - `delay`, `run_at`, `priority`, `attributes`, `retention`, `request_key`: settings of the job that
          starts the flow, as those of `enqueue`.
        - `on_conflict`: Reject(...): how to treat an id that is known already. Default Reject(): a flow that
          runs or has completed stays, and one that failed or was cancelled is replaced.

        Raises ConfigurationError for an app without flows=True, Refused naming a bad setting.
        """
        from dibs.flow.builder import Flow  # noqa: PLC0415 - keeps `import dibs` fast

        return Flow(self._require_flows(), id, keep, settings)

    def chain(
        self,
        *calls: Bound[Any] | TaskEnqueuer[..., Any],
        id: str | None = None,
        keep: Seconds | None = DEFAULT_KEEP,
        **settings: Unpack[FlowSettings],
    ) -> Chain:
        """Return calls that run one after the other, each with the result before it as its first argument.

            ticket = await app.chain(resize.bind("a.png"), send).enqueue()

        A call is a task, or made with `task.bind(...)`; each but the first leaves out the first argument. The
        settings are those of `flow`. Raises ConfigurationError for an app without flows=True, Refused.
        """
        from dibs.flow.builder import Chain  # noqa: PLC0415 - keeps `import dibs` fast

        return Chain(self.flow(id, keep=keep, **settings), calls)

    def get_flow(self, id: str) -> StoredFlow:
        """Return the flow with this id in the storage, to see its status, cancel it or retry it.

            status = await app.get_flow("album-42").status()  # None for an unknown flow

        Raises ConfigurationError for an app without flows=True, Refused for a bad id.
        """
        from dibs.flow.stored_flow import StoredFlow  # noqa: PLC0415 - keeps `import dibs` fast
        from dibs.model.check_values import check_text  # noqa: PLC0415 - the same

        check_text("id", id, 512)
        return StoredFlow(self._require_flows(), id)

    def batch(
        self,
        id: str | None = None,
        *,
        on_success: Bound[Any] | None = None,
        on_finish: Bound[Any] | None = None,
        on_first_failure: Bound[Any] | None = None,
        keep: Seconds | None = DEFAULT_KEEP,
        open_for: Seconds = DEFAULT_OPEN_FOR,
        attributes: Mapping[str, Any] | None = None,
    ) -> Batch:
        """Return a new batch: any number of jobs, its *members*, with callbacks after their end.

            async with app.batch("mailing-7", on_finish=send.bind("boss@example.org")) as batch:
                await batch.enqueue_many(send.bind(to) for to in ("ada@example.org", "bo@example.org"))

        Use it as `async with app.batch(...) as batch:`, and add members with `await batch.enqueue_many(...)`.

        - `id`: id of the batch, 1 to 440 bytes; default: a generated one. An id that is live or has completed
          is joined: no new batch is made.
        - `on_success`: a job that is enqueued if all members have completed.
        - `on_finish`: a job that is enqueued after all members have ended, in any way.
        - `on_first_failure`: a job that is enqueued after the first member that does not complete.
        - `keep`: seconds that the outcomes of members, callbacks and the batch are kept at least; None is for
          ever. Default 7 days.
        - `open_for`: seconds without a new member after which a batch that nobody closes is closed. Default
          1 hour.
        - `attributes`: JSON values of the batch by name.

        Each callback is a job made with `task.bind(...)`, with retries of its own. Its attribute
        `dibs.summary` has the numbers of members. Raises ConfigurationError for an app without flows=True,
        Refused naming a bad setting.
        """
        from dibs.flow.batch.batch import Batch  # noqa: PLC0415 - keeps `import dibs` fast
        from dibs.flow.batch.evaluation import plan_callbacks  # noqa: PLC0415 - the same

        context = self._require_flows()
        given = {"on_success": on_success, "on_finish": on_finish, "on_first_failure": on_first_failure}
        callbacks = plan_callbacks(context, given)
        return Batch(context, id, callbacks, keep=keep, open_for=open_for, attributes=attributes)

    def get_batch(self, id: str | None = None) -> StoredBatch:
        """Return the batch with this id in the storage, to add members to it or to read its results.

            await app.get_batch("mailing-7").close()

        Default: in a handler, the batch of which the running job is a member or a callback. Raises
        ConfigurationError for an app without flows=True, and for a job that belongs to no batch; Refused for
        a bad id.
        """
        from dibs.flow.batch.stored_batch import StoredBatch, current_batch_id  # noqa: PLC0415 - see flow
        from dibs.model.check_values import check_text  # noqa: PLC0415 - the same

        id = current_batch_id() if id is None else id
        check_text("id", id, 512)
        return StoredBatch(self._require_flows(), id)

    # -- work ----------------------------------------------------------------------------------------

    async def work(
        self,
        queues: Sequence[str] | None = None,
        processes: int | None = 0,
        until: Until = "stopped",
        grace: Seconds = DEFAULT_GRACE,
        *,
        lease: Seconds = DEFAULT_LEASE,
        heartbeat: Seconds | None = None,
        poll: Seconds = DEFAULT_POLL,
        name: str | None = None,
        max_runs: int | None = None,
        max_memory: float | None = None,
        handle_signals: bool = True,
    ) -> WorkReport:
        """Run jobs until the worker is stopped, and return a report of the runs.

            report = await app.work(until="idle")
            print(report.total("completed"), report.total("failed"))

        - `queues`: names of the queues to serve; default: all queues that have a handler.
        - `processes`: number of worker processes; None: one per CPU; 0: jobs run in this process. Default 0.
        - `until`: "stopped" works until a stop signal, `stop` or cancellation; a cancelled call releases
          its jobs at once. "empty" returns when the queues have no waiting, scheduled, active or blocked
          job, so it waits for a job that is due tomorrow. "idle" returns when the queues have no due, active
          or blocked job; a retry that is due later stays. For both, paused queues, handed-off runs and the
          next ticks of periodic tasks do not count. Default "stopped".
        - `grace`: seconds that running jobs, and then the part of the lifespan after its yield, have to end
          after a stop; then the jobs are released. A second signal releases them at once. Default 30.
        - `lease`: seconds from the last heartbeat until the jobs return to the queue. Default 15.
        - `heartbeat`: seconds between two renewals of the lease; less than `lease`. Default: a third of it.
        - `poll`: seconds between two claims on an empty queue, so the longest delay after a lost
          notification. Default 1.
        - `name`: name of the worker, as in `Status.holder`. Default: "host:process id:random digits".
        - `max_runs`, `max_memory`: runs, and resident memory in MB (Linux only), after which a worker process
          claims no more, ends its runs and is replaced; None is no limit. Default None.
        - `handle_signals`: True stops this call at SIGTERM, SIGINT or SIGHUP. Meanwhile handlers that the
          program has set with signal.signal are not called, and a handler for SIGHUP stays in place. False
          leaves all signals to the program, which calls `stop`. Default True.

        Raises ConfigurationError if no handler is declared or a setting does not fit, UnknownTask for a
        queue without a handler, Refused for a name that is empty or too long, StorageError.
        """
        module, _, function = WORKER_FUNCTION.partition(":")
        run: Callable[..., Awaitable[WorkReport]] = getattr(import_module(module), function)
        from dibs.client.work_report import StopRequests  # noqa: PLC0415 - keeps `import dibs` fast

        stop = StopRequests()
        self._running_works.add(stop)
        try:
            async with self._storage_handle.opened_temporarily():
                return await run(
                    self,
                    queues=queues,
                    processes=processes,
                    until=until,
                    grace=grace,
                    lease=lease,
                    heartbeat=heartbeat,
                    poll=poll,
                    name=name,
                    max_runs=max_runs,
                    max_memory=max_memory,
                    handle_signals=handle_signals,
                    stop_requests=stop,
                )
        finally:
            self._running_works.discard(stop)

    def stop(self, grace: Seconds | None = None) -> None:
        """Stop all calls of `work` of this app in this process, as a signal does, and return at once.

            app.stop(grace=5)  # running jobs have 5 seconds to end

        Any thread may call it. `grace`: seconds that running jobs have to end; default: the `grace` of each
        `work`. A later call can only shorten this time: `stop(grace=0)` releases the jobs at once.
        """
        from dibs.client.work_report import StopRequest  # noqa: PLC0415 - keeps `import dibs` fast

        seconds = None if grace is None else duration_seconds("grace", grace)
        for work in tuple(self._running_works):
            work.put(StopRequest(seconds))
