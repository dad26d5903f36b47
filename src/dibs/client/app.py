"""The app: one storage, the queues and tasks declared on it, and the way to its workers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypeVar, Unpack, overload

from dibs.client.calls.handler_registry import HandlerRegistry
from dibs.client.calls.middleware import EnqueueMiddleware, RunMiddleware, compose_enqueue
from dibs.client.calls.signature import check_function, name_of
from dibs.client.calls.task_settings import TaskSettings
from dibs.client.connection.queue_client import QueueClient
from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.options.serde import JSON, Serde
from dibs.client.queue import Queue
from dibs.client.task import AsyncTask, Task, TaskDecorator, declare_task
from dibs.errors import BadHandler, ConfigurationError, UnknownTask
from dibs.model.check_jobs import check_queue, check_target
from dibs.model.job import FAIL_SUFFIX
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage

if TYPE_CHECKING:
    from dibs.client.sync.handles import BlockingDibs

P = ParamSpec("P")
R = TypeVar("R")
Lifespan = Callable[[], AbstractAsyncContextManager[Any]]
L = TypeVar("L", bound=Callable[[], AsyncIterator[Any]])
Until = Literal["stopped", "empty"]

#: Who runs jobs. By name, because workers are built on the client and the client must not import them.
WORK = "dibs.worker:run"


class Dibs:
    """A job queue at a URL: declares queues and tasks, enqueues, and runs workers.

    The URL is the one given, else $DIBS_URL, else url under [tool.dibs] in the nearest pyproject.toml;
    `options` are the storage's own. It opens at first use or with `async with app`; after close every
    use raises NotRunning.
    """

    def __init__(self, url: str | None = None, **options: Any) -> None:
        self._storage_handle = StorageHandle(url, options)
        #: What runs each queue's jobs, by queue; a failure handler stands under `queue!fail`.
        self.handlers = HandlerRegistry()
        #: What was declared with @app.lifespan, to be entered once in each worker process.
        self.lifespan_function: Lifespan | None = None
        self._clients: dict[str, QueueClient] = {}
        self._tasks: dict[str, Task[Any, Any]] = {}

    def __repr__(self) -> str:
        return f"Dibs({self._storage_handle.redacted_url!r})"

    @property
    def sync(self) -> BlockingDibs:
        """The same, blocking; its queues, tickets and claims are blocking too."""
        from dibs.client.sync.handles import BlockingDibs  # noqa: PLC0415 - only who blocks pays for it

        return BlockingDibs(self)

    @property
    def url(self) -> str:
        """The URL that counts, with its secrets: for opening, not for showing. Raises NoStorage."""
        return self._storage_handle.url

    @property
    def storage(self) -> Storage:
        """The opened storage. Raises NotRunning before the first use and after close."""
        return self._storage_handle.opened.storage

    async def open(self) -> None:
        """Open the storage; each open wants its close. Raises NoStorage, StorageError."""
        await self._storage_handle.enter()

    async def close(self) -> None:
        """Close the storage, if this is the last block that entered it."""
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
        """Let its jobs live at another URL for a block, and open it there: `async with app.using("memory:")`.

        Afterwards they live where they did. For tests there is more in dibs.testing: a clock, and runs.
        """
        with self.override_storage(open_storage(url, **options)):
            async with self:
                yield self

    def override_storage(self, storage: Storage) -> AbstractContextManager[None]:
        """Let its jobs live in this storage for a block; to be opened there as the app always is."""
        return self._storage_handle.override(storage)

    def middleware(
        self, *, enqueue: EnqueueMiddleware | None = None, run: RunMiddleware | None = None
    ) -> None:
        """Let something stand around each enqueue and each run: a context manager, made for each.

        `enqueue(queue, requests)` is asynchronous and yields the requests to send; `run(job)` is entered
        where the handler is called, in every process that imports this app. The latest is the outermost.
        """
        if enqueue is not None:
            self._storage_handle.enqueue_middleware = compose_enqueue(
                enqueue, self._storage_handle.enqueue_middleware
            )
        if run is not None:
            self.handlers.add_middleware(run)

    # -- declare -------------------------------------------------------------------------------------

    def queue(self, name: str, *, serde: Serde | None = None) -> Queue:
        """Return the queue of this name, always on the same serde: the one first said, else JSON.

        Raises Refused for what is no name, ConfigurationError for a second serde.
        """
        task = self._tasks.get(name)
        return task.queue if task and serde is None else Queue(self._client(name, serde), self.handlers)

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self, *, queue: str | None = None, serde: Serde | None = None, **settings: Unpack[TaskSettings]
    ) -> TaskDecorator: ...
    # mypy does not see that unpacked settings are keywords of this one, too.
    def task(  # type: ignore[misc]
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        queue: str | None = None,
        serde: Serde | None = None,
        **settings: Unpack[TaskSettings],
    ) -> Any:
        """Declare a function as a task: a queue of its own, named module.function unless `queue` says else.

        Bare, or with the limits of its runs; with `every` or `cron` it is periodic. Raises BadHandler for
        what a worker could not import, Refused naming a bad setting, DuplicateHandler for a queue that is
        taken.
        """

        def declare(function: Callable[..., Any]) -> Task[Any, Any]:
            check_function(function)
            name = name_of(function) if queue is None else queue
            check_target(name)
            client = self._client(name, serde)
            self._tasks[name] = declare_task(client, function, self.handlers, settings)
            return self._tasks[name]

        return TaskDecorator(declare) if function is None else declare(function)

    def get_task(self, name: str) -> Task[Any, Any]:
        """Return the task of this name. Raises UnknownTask naming those there are."""
        if name not in self._tasks:
            raise UnknownTask(f"no task {name!r}; there are {', '.join(sorted(self._tasks)) or 'none'}")
        return self._tasks[name]

    def lifespan(self, function: L) -> L:
        """Declare what is entered once in each worker process before its first claim: yield once.

        What it yields is current_job().resources; after the yield comes what ends with the process.
        """
        if self.lifespan_function is not None:
            raise BadHandler("this app has a lifespan already; an app has one: enter the other from it")
        self.lifespan_function = asynccontextmanager(function)
        return function

    def _client(self, name: str, serde: Serde | None) -> QueueClient:
        check_queue(name)
        known = self._clients.get(name)
        if known is None:
            known = self._clients[name] = QueueClient(
                self._storage_handle, name, serde or self._inherited(name)
            )
        if serde is not None and serde is not known.serde:
            raise ConfigurationError(
                f"queue {name!r} has a serde already ({known.serde.name}): say it where it is first named"
            )
        return known

    def _inherited(self, name: str) -> Serde:
        """A fail job has the failed job's payload byte for byte, so it is read as that one is."""
        parent = self._clients.get(name.removesuffix(FAIL_SUFFIX))
        return JSON if parent is None else parent.serde

    # -- work ----------------------------------------------------------------------------------------

    async def work(
        self,
        queues: Sequence[str] | None = None,
        processes: int = 0,
        until: Until = "stopped",
        grace: float = 30.0,
    ) -> Any:
        """Run jobs of these queues, of all that have a handler if none is named.

        `processes` 0 is in this process; until="empty" returns once nothing is due. When stopped, running
        jobs have `grace` seconds to end, then they are released.
        """
        module, _, name = WORK.partition(":")
        run: Callable[..., Awaitable[Any]] = getattr(import_module(module), name)
        async with self._storage_handle.opened_temporarily():
            return await run(self, queues=queues, processes=processes, until=until, grace=grace)
