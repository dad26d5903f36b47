"""A queue: jobs of any JSON data, and everything that can be asked of a queue."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.error_info import error_of
from dibs.client.calls.handler_registry import (
    HandlerRegistry,
    HandlerSettings,
    failure_arguments,
    handler_of,
    queue_arguments,
    queue_check,
)
from dibs.client.calls.signature import CallSignature, check_function
from dibs.client.connection.queue_client import QueueClient, split_ids
from dibs.client.feed import Feed, FeedKind
from dibs.client.options.durations import Seconds
from dibs.client.options.job_settings import (
    JOB_SETTINGS,
    JobSettings,
    build_request,
    check_setting_names,
    due_fields,
    encode_attributes,
)
from dibs.client.options.queue_settings import QueueSettings, build_patch
from dibs.client.options.retention import Retention, build_retention
from dibs.client.receiver import Receiver
from dibs.client.status import Status, status_in, status_of
from dibs.client.ticket import Ticket, Tickets
from dibs.errors import Refused
from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Complete, End, EnqueueRequest, Fail, JobPatch
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    Counts,
    FinishStatus,
    PruneResult,
    RetryFailedStatus,
    State,
)

if TYPE_CHECKING:
    from dibs.client.sync.handles import BlockingQueue

#: How many ids one page of a listing has, and how much one step of a prune removes.
PAGE_SIZE = 500
PRUNE_BATCH = 1000

F = TypeVar("F", bound=Callable[..., Any])


class Queue:
    """A named queue, of app.queue(name) or of a task; nearly every method is one verb of contract 3."""

    def __init__(
        self, client: QueueClient, handlers: HandlerRegistry, task: CallSignature | None = None
    ) -> None:
        self._client = client
        self._handlers = handlers
        self._task = task
        self.name: str = client.name

    def __repr__(self) -> str:
        return f"Queue({self.name!r})"

    @property
    def sync(self) -> BlockingQueue:
        """The same, blocking."""
        from dibs.client.sync.handles import BlockingQueue  # noqa: PLC0415 - only who blocks pays for it

        return BlockingQueue(self)

    # -- enqueue -------------------------------------------------------------------------------------

    async def enqueue(
        self, data: Any, *, connection: Any = None, **settings: Unpack[JobSettings]
    ) -> Ticket[Any]:
        """Enqueue data, anything that the queue's serde can write. Raises Refused, OutcomeUnknown.

        Where its handler is known here, the data must be what that is annotated to take. An id without a
        live job becomes waiting; a known one is met as on_conflict says, Update() if nothing is said.
        Concurrent calls travel together. With a connection of psycopg or SQLAlchemy it is part of the
        transaction there.
        """
        request = self._request(data, settings)
        answer = await self._client.enqueue(request, connection)
        return Ticket(self._client, request.job.id, answer.revision, answer=answer)

    async def enqueue_many(self, items: Iterable[Any], *, connection: Any = None) -> Sequence[Ticket[Any]]:
        """Enqueue any number of data, or of queue.bind(...) where settings are wanted, in order.

        All are checked first: raises BatchRefused naming each bad one, and then nothing was sent.
        """
        jobs = (item if isinstance(item, Bound) else self.bind(item) for item in items)
        return Tickets(self._client, await self._client.enqueue_all(jobs, connection))

    def bind(self, data: Any, **settings: Unpack[JobSettings]) -> Bound:
        """Return a job to be enqueued later, in a batch or as a follow-up of another."""
        try:
            return Bound(self.name, self._request(data, settings))
        except Refused as refused:
            return Bound(self.name, refused)

    def _request(self, data: Any, settings: JobSettings) -> EnqueueRequest:
        check_setting_names(settings, JOB_SETTINGS)
        return build_request(self._payload(data), settings)

    def _payload(self, data: Any) -> bytes:
        payload = self._client.serde.encode(data)
        handler = self._handlers.get(self.name)
        if handler is not None and handler.check is not None:
            handler.check(data, payload)
        return payload

    def ticket(self, id: str, revision: int) -> Ticket[Any]:
        """Return the ticket of an enqueue made elsewhere, by the id and revision of the one given there."""
        return Ticket(self._client, id, revision)

    # -- handlers ------------------------------------------------------------------------------------

    @overload
    def handler(self, function: F, /) -> F: ...
    @overload
    def handler(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not see that unpacked settings are keywords of this one, too.
    def handler(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the function that runs this queue's jobs: it is called with (data) or (data, job).

        `data` is converted to the type it is annotated with; `job` is current_job(). A queue has exactly
        one handler: a second one raises DuplicateHandler, a lambda, method or inner function BadHandler.
        """

        def declare(function: F) -> F:
            check_function(function)
            serde = self._client.serde
            call = CallSignature(function)
            handler = handler_of(self.name, function, serde, queue_arguments(call, serde), settings)
            self._handlers.register(replace(handler, check=queue_check(call, serde)))
            return function

        return declare if function is None else declare(function)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not see that unpacked settings are keywords of this one, too.
    def on_failure(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the function that is told of jobs that failed for good: (failure) or (failure, job).

        It runs at least once for each, with limits and retries of its own, as a job of `name!fail`.
        """

        def declare(function: F) -> F:
            check_function(function)
            name, serde = f"{self.name}{FAIL_SUFFIX}", self._client.serde
            arguments = failure_arguments(CallSignature(function), serde, self._task)
            self._handlers.register(handler_of(name, function, serde, arguments, settings))
            return function

        return declare if function is None else declare(function)

    def receive(self, max_jobs: int = 10, lease: Seconds = 30, wait: Seconds | None = None) -> Receiver:
        """Claim jobs by hand: `async with queue.receive() as claims: async for claim in claims: ...`.

        At most `max_jobs` are held at a time, under a lease of `lease` seconds that is renewed in the
        background. The iteration ends when nothing came for `wait` seconds; None: never.
        """
        handled = f"{self.name}{FAIL_SUFFIX}" in self._handlers
        return Receiver(self._client, max_jobs, lease, wait, handles_failure=handled)

    # -- by id ---------------------------------------------------------------------------------------

    async def get(self, id: str) -> Status | None:
        """Return how an id stands: its job, else its outcome; None when nothing is known of it."""
        return status_of(self.name, id, await self._client.get(id))

    async def list(self, state: State) -> AsyncIterator[Status]:
        """Yield every id in a state, in no promised order; what stays in it throughout comes exactly once."""
        after: str | None = None
        while True:
            page = await (await self._client.storage()).list(self.name, state, after=after, limit=PAGE_SIZE)
            for id, slot in page.items:
                yield status_in(self.name, id, slot, state)
            if (after := page.after) is None:
                return

    async def cancel(self, id: str, *, running: bool = False) -> CancelStatus:
        """Take a waiting or blocked job out; with `running` also ask the active run to stop."""
        return (await self.cancel_many([id], running=running))[0]

    async def cancel_many(self, ids: Iterable[str], *, running: bool = False) -> Sequence[CancelStatus]:
        """Cancel many, each by itself: cancelled, requested, active, completed, failed or not_found."""
        storage = await self._client.storage()
        return [
            word for ids in split_ids(ids) for word in await storage.cancel(self.name, ids, running=running)
        ]

    async def amend(
        self,
        id: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        data: Any = UNSET,
        run_at: datetime | None = None,
        delay: Seconds | None = None,
        priority: int | UnsetType = UNSET,
        retention: Retention | Seconds | UnsetType | None = UNSET,
    ) -> AmendStatus:
        """Change a job, whole or not at all: amended, active or not_found (contract 3, amend).

        Attributes merge into what there is; data, time and priority only while it waits.
        """
        patch = JobPatch(
            attributes=UNSET if attributes is None else encode_attributes(attributes),
            payload=UNSET if data is UNSET else self._payload(data),
            priority=priority,
            retention=UNSET if retention is UNSET else build_retention(retention),
            **due_fields({"run_at": run_at, "delay": delay}),
        )
        return await (await self._client.storage()).amend(self.name, id, patch)

    async def finish(
        self, id: str, revision: int, result: Any = None, *, error: BaseException | None = None
    ) -> FinishStatus:
        """End a job that was handed off, well or with an error: done, lost, refused or not_found.

        `revision` is what claim.hand_off() returned. Repeating it is safe.
        """
        end: End = Complete(result=self._client.serde.encode(result))
        if error is not None:
            end = Fail(error=error_of(error), handled=f"{self.name}{FAIL_SUFFIX}" in self._handlers)
        return await (await self._client.storage()).finish(self.name, id, end, revision)

    async def retry_failed(self, id: str) -> RetryFailedStatus:
        """Let a job that failed for good wait again, counts 0."""
        return (await self.retry_failed_many([id]))[0]

    async def retry_failed_many(self, ids: Iterable[str]) -> Sequence[RetryFailedStatus]:
        """Retry many: queued, live, not_kept, completed, cancelled or not_found each."""
        storage = await self._client.storage()
        return [word for ids in split_ids(ids) for word in await storage.retry_failed(self.name, ids)]

    async def forget(self, id: str) -> bool:
        """Remove everything of an id, whatever its state; tells whether there was anything."""
        return (await (await self._client.storage()).forget(self.name, [id]))[0]

    # -- the queue -----------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Let no claim take jobs from now on. Running ones go on."""
        await self.configure(paused=True)

    async def resume(self) -> None:
        """Let claims take jobs again."""
        await self.configure(paused=False)

    async def counts(self) -> Counts:
        """Count the ids in each state; numbers above 10,000 may be off, and then say so."""
        return (await (await self._client.storage()).counts([self.name]))[self.name]

    async def configure(self, **changes: Unpack[QueueSettings]) -> None:
        """Change what the queue is set to; every claim that begins afterwards obeys."""
        await (await self._client.storage()).configure(self.name, build_patch(changes))

    async def prune(self) -> PruneResult:
        """Remove what has expired: outcomes, request keys, and the log beyond its age and size."""
        storage = await self._client.storage()
        total = PruneResult()
        while True:
            step = await storage.prune(self.name, PRUNE_BATCH)
            total = added(total, step)
            if not step.more:
                return total

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> Feed:
        """Follow what happens: the log after an offset, "" for all of it; without one, the live feed.

        `async with queue.events() as events: async for event in events: ...`. The live feed includes
        progress, and is best effort. With ids or kinds it tells of these alone; entering it raises Refused
        for kinds that are beyond the queue's log_level.
        """
        return Feed(self._client, after, ids, kinds)


def added(one: PruneResult, other: PruneResult) -> PruneResult:
    """Return what two steps removed together."""
    return PruneResult(
        outcomes=one.outcomes + other.outcomes,
        request_keys=one.request_keys + other.request_keys,
        events=one.events + other.events,
    )
