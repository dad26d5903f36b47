"""Queues of jobs with any JSON data: enqueue, handlers, claims, events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from attrs import evolve
from msgspec import UNSET

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.handler import Ending
from dibs.client.calls.handler_registry import (
    HandlerRegistry,
    HandlerSettings,
    build_handler,
    check_exact_arguments,
    check_failure_settings,
    check_function,
    failure_argument_decoder,
    queue_argument_decoder,
    queue_converters,
    queue_data_check,
)
from dibs.client.calls.signature import CallSignature
from dibs.client.connection.queue_client import QueueClient
from dibs.client.feed import Feed, FeedKind
from dibs.client.options.arguments import Seconds, check_list
from dibs.client.options.job_settings import (
    JOB_SETTINGS,
    JobSettings,
    build_request,
    build_update,
    check_setting_names,
    is_update_only,
)
from dibs.client.receiver import Receiver
from dibs.client.stored_queue import StoredQueue
from dibs.client.ticket import (
    DEFAULT_WAIT,
    Ticket,
    Tickets,
    check_taken,
    extend_request_retention,
    own_retention,
)
from dibs.errors import BadHandler, Refused
from dibs.model.check_arguments import check_revision
from dibs.model.check_values import check_is_text
from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult

if TYPE_CHECKING:
    from dibs.client.sync.queue import BlockingQueue

F = TypeVar("F", bound=Callable[..., Any])
Hook = Callable[[Ending], Awaitable[None] | None]
H = TypeVar("H", bound=Hook)


class Queue(StoredQueue):
    """A named queue of jobs, returned by `app.queue(name)` and by `task.queue`.

    It enqueues jobs, declares the function that runs them, and inspects and changes jobs by id. A queue
    needs no creation: any allowed name can be used at once.
    """

    def __init__(
        self, client: QueueClient, handlers: HandlerRegistry, task: CallSignature | None = None
    ) -> None:
        super().__init__(client, handlers)
        self._task = task

    @property
    def sync(self) -> BlockingQueue:
        """This queue with blocking methods, for code without an event loop."""
        from dibs.client.sync.queue import BlockingQueue  # noqa: PLC0415 - async programs never load it

        return BlockingQueue(self)

    # -- enqueue -------------------------------------------------------------------------------------

    async def enqueue(
        self, data: Any = UNSET, *, connection: Any = None, **settings: Unpack[JobSettings]
    ) -> Ticket[Any]:
        """Enqueue a job with any data that the queue's serde can encode, and return its ticket.

            ticket = await queue.enqueue({"to": "ada@example.org"}, id="mail-1", delay="5m")

        If this app has the handler of the queue, the data is checked against its type hint, and refused if
        it would arrive changed. Concurrent calls are sent to the storage in one batch. With a `connection`
        of psycopg, SQLAlchemy or Django the job is enqueued in its transaction.

        The settings of a job, each with its default:

        - `id`: id of the job, 1 to 512 bytes; default: a generated one, which sorts by time.
        - `delay`: seconds until the job may start, text such as "5m", or a timedelta. Default 0.
        - `run_at`: datetime with a time zone from which the job may start; excludes `delay`.
        - `priority`: -1000 to 1000; a higher number starts first. Default 0.
        - `on_conflict`: Update(...) or Reject(...): how to treat an id that is known already.
          Update(create=False) takes no data, and changes nothing for an id without a live job.
          Default Update().
        - `supersede`: True to ask the active run of the id to end, so that this job replaces it; a handed-off
          run ends at once. The caller that waits for the replaced run gets JobCancelled. Default False.
        - `request_key`: text of at most 128 bytes. A second enqueue with the same key within an hour
          changes nothing and gets the ticket of the first. Default: no key.
        - `key`: key of the job, to which `per_key` and `key_rate` of the queue apply: text of 1 to 128 bytes,
          a whole number, or None for no key. Default: no key, also in a queue whose task derives one.
        - `attributes`: mapping of text to JSON values, for listings and other programs. Default: empty.
        - `retention`: how long the outcome is kept: seconds, None for ever, or a Retention. Default: the
          retention of the queue.
        - `timeout`, `max_retries`, `max_timeouts`, `max_stalls`, `backoff`: replace the limits of the
          handler for this job; the units are the same. Default: the limits of the handler.
        - `start_by`: datetime with a time zone from which no run may start, or seconds from now by the clock
          of this machine. A worker that claims the job later cancels it. Default: no deadline.
        - `lease`: least seconds of the lease if the job is claimed with `queue.receive`, from the claim on.
          Default: the lease of the receiver. Workers ignore it: they renew a lease of their own.

        Raises Refused naming the setting at fault, QueueFull if the queue is at its `max_waiting` and
        refuses the job, OutcomeUnknown if the reply of the storage was lost, StorageError.
        """
        if connection is not None:
            request = self._build_request(data, settings)
            answer = await self._client.enqueue_in_transaction(request, connection)
            return self._ticket(request, answer)
        opened = await self._client.storage_handle.open_for_enqueue()
        # Wait here, before the data is encoded, so that a waiting call takes little memory.
        turn = opened.slots.acquire(self.name)
        try:
            expires = None if turn is None else await turn
            request = self._build_request(data, settings)
            answer = await self._client.enqueue(opened, request, expires)
            return self._ticket(request, answer)
        finally:
            opened.slots.release(turn)

    async def enqueue_and_wait(
        self, data: Any = UNSET, *, wait: Seconds | None = DEFAULT_WAIT, **settings: Unpack[JobSettings]
    ) -> Any:
        """Enqueue a job, wait for it, and return its result.

            result = await app.queue("echo").enqueue_and_wait({"n": 1}, wait="10s")

        It waits at most `wait` seconds, by default 60; None waits until the job ends. The settings are
        those of `enqueue`. Raises the errors of `enqueue` and of `ticket.result`. After WaitTimeout the job
        stays in the queue.
        """
        async with self._client.slot() as (opened, expires):
            request = self._build_request(data, settings, want_outcome=True)
            if not is_update_only(settings):
                request = await extend_request_retention(self._client, request, wait)
            answer = await self._client.enqueue(opened, request, expires)
        return await self._ticket(request, answer).result(wait)

    def _ticket(self, request: EnqueueRequest, answer: EnqueueResult) -> Ticket[Any]:
        retention = own_retention(request)
        ticket = Ticket[Any](
            self._client, request.job.id, answer.revision, answer=answer, retention=retention
        )
        return check_taken(ticket)

    async def enqueue_many(self, items: Iterable[Any], *, connection: Any = None) -> Sequence[Ticket[Any]]:
        """Enqueue many jobs in their order. An item is the data of a job, or `queue.bind(data, ...)`.

            tickets = await queue.enqueue_many([{"to": "ada"}, queue.bind({"to": "bo"}, priority=5)])

        A `connection` of psycopg, SQLAlchemy or Django enqueues the jobs in its transaction. All jobs are
        checked before the first is sent: raises BatchRefused with one Refused for each bad job. Raises
        QueueFull after all were sent if the queue took only a part of them; its `tickets` say which.
        """
        check_list("items", items)
        jobs = (item if isinstance(item, Bound) else self.bind(item) for item in items)
        return Tickets[Any](self._client, await self._client.enqueue_all(jobs, connection)).checked()

    def bind(self, data: Any = UNSET, **settings: Unpack[JobSettings]) -> Bound[Any]:
        """Return a job to be enqueued later: with `enqueue_many`, in a flow, or as a job's follow-up.

            await claim.complete(then=[queue.bind({"to": "bo@example.org"}, delay="1h")])

        The settings are those of `enqueue`. The call that takes the Bound raises the errors of `enqueue`.
        """
        try:
            return Bound(self.name, self._build_request(data, settings), "id" in settings)
        except Refused as refused:
            return Bound(self.name, refused)

    def _build_request(
        self, data: Any, settings: JobSettings, *, want_outcome: bool = False
    ) -> EnqueueRequest:
        check_setting_names(settings, JOB_SETTINGS)
        if data is UNSET:
            return self._build_update(settings, want_outcome=want_outcome)
        return build_request(self._encode_payload(data), settings, want_outcome=want_outcome)

    def _build_update(self, settings: JobSettings, *, want_outcome: bool) -> EnqueueRequest:
        if not is_update_only(settings):
            raise Refused(
                "data is missing; pass the data of the job (only a request with "
                "on_conflict=Update(create=False) has none)",
                field="data",
            )
        return build_update(settings, want_outcome=want_outcome)

    def ticket(self, id: str, revision: int) -> Ticket[Any]:
        """Return the ticket of an earlier enqueue by its id and revision, also one of another process.

        Example: `status = await queue.ticket(ticket.id, ticket.revision).status()`
        """
        check_is_text("id", id)
        check_revision("revision", revision)
        return Ticket(self._client, id, revision)

    # -- handlers ------------------------------------------------------------------------------------

    @overload
    def handler(self, function: F, /) -> F: ...
    @overload
    def handler(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not accept unpacked settings for the keywords of the overloads above.
    def handler(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the function that runs the jobs of this queue: `@queue.handler`.

            @queue.handler(timeout="1m")
            async def deliver(data: dict[str, str], job: CurrentJob) -> str:
                return f"attempt {job.attempt} for {data['to']}"

        A worker calls it with (data) or (data, job): the data is converted to its type hint, and the job is
        the CurrentJob. The options are those of Dibs.task without `queue`, `serde` and the schedule.

        Raises DuplicateHandler if the queue has a handler already, BadHandler for a function that a worker
        could not import or call, Refused naming a bad option.
        """

        def declare(function: F) -> F:
            check_function(function)
            serde, options = self._client.serde, self._handlers.with_defaults(settings)
            call = CallSignature(function, exact=check_exact_arguments(options))
            handler = build_handler(self.name, function, serde, queue_argument_decoder(call, serde), options)
            check = queue_data_check(call, serde)
            self._handlers.register(evolve(handler, check_data=check, **queue_converters(call, serde)))
            return function

        return declare if function is None else declare(function)

    @overload
    def on_failure(self, function: F, /) -> F: ...
    @overload
    def on_failure(self, **settings: Unpack[HandlerSettings]) -> Callable[[F], F]: ...
    # mypy does not accept unpacked settings for the keywords of the overloads above.
    def on_failure(  # type: ignore[misc]
        self, function: Any = None, /, **settings: Unpack[HandlerSettings]
    ) -> Any:
        """Declare the failure handler: a worker calls it at least once for each failed job of this queue.

            @queue.on_failure
            async def report(failure: Failure) -> None:
                print(failure.id, failure.error.message)

        A job fails when it has no retries left, or at once with PermanentError. The worker calls the failure
        handler with (failure) or (failure, job): a Failure and the CurrentJob. It runs as a job of the queue
        `name!fail`; the options set the limits of these runs, without `exact_arguments`. By default it is
        retried for more than 24 hours: `max_retries` and `max_timeouts` are 110, and `backoff` is
        Exponential(10, 900).

        A worker with the failure handler sets the queue's setting `fail_handler` before its first claim. From
        then on each failure is handled, whoever ends the job. To stop a failure handler, pause `name!fail`.

        Raises the errors of `handler`.
        """

        def declare(function: F) -> F:
            check_function(function)
            check_failure_settings(settings)
            name, serde = f"{self.name}{FAIL_SUFFIX}", self._client.serde
            arguments = failure_argument_decoder(CallSignature(function), serde, self._task)
            self._handlers.register(build_handler(name, function, serde, arguments, settings))
            return function

        return declare if function is None else declare(function)

    def after(self, hook: H) -> H:
        """Declare a hook: a worker calls it with the Ending of each run, before it settles the run.

            @app.queue("echo").after
            def shorten(ending: Ending) -> None:
                if ending.kind == "completed":
                    ending.result = str(ending.result)[:100]

        The hook may change the result and the retention. Raises BadHandler for a second hook, or if the app
        has no handler for this queue yet.
        """
        handler = self._handlers.get(self.name)
        if handler is None:
            raise BadHandler(
                f"queue {self.name!r} has no handler in this app; declare the handler before its hook"
            )
        if handler.after is not None:
            raise BadHandler(f"queue {self.name!r} has a hook already; call both functions from one hook")
        if not callable(hook):
            raise BadHandler(f"{hook!r:.60} cannot be a hook; pass a function that takes the Ending")
        self._handlers[self.name] = evolve(handler, after=hook)
        return hook

    def receive(self, max_jobs: int = 10, lease: Seconds = 30, wait: Seconds | None = None) -> Receiver:
        """Claim jobs without a worker: `async with queue.receive() as claims: async for claim in claims:`.

            async with queue.receive(max_jobs=5, wait=1) as claims:
                async for claim in claims:
                    await claim.complete("done")

        - `max_jobs`: number of claims that may be open at a time. Default 10.
        - `lease`: seconds of the lease, which is renewed in the background. Default 30.
        - `wait`: seconds without a job after which the iteration ends; None never ends it. Default None.

        Raises Refused for a value that is not allowed.
        """
        handled = f"{self.name}{FAIL_SUFFIX}" in self._handlers
        return Receiver(self._client, max_jobs, lease, wait, has_failure_handler=handled)

    # -- the log ---------------------------------------------------------------------------------------

    def events(
        self,
        after: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        kinds: Iterable[FeedKind] | None = None,
    ) -> Feed:
        """Follow the events of this queue: `async with queue.events() as events: async for event in events:`.

            async with queue.events(kinds=["completed"]) as events:
                await claim.complete("sent")
                async for event in events:
                    print(event.id, event.kind)
                    break

        - `after`: offset of an event; the feed begins with the event after it. "" is the start of the log,
          also if its first events were trimmed. Default None: new events, and the progress that runs report.
        - `ids`: only events of these ids. Default: all ids.
        - `kinds`: only events of these kinds. Default: all kinds.

        Of several reports of a run in a row, only the last may be an event. The last report of a run is one
        if its outcome is kept, usually before the end of the run.

        Entering the feed raises Refused for kinds that the queue's `log_level` leaves out.
        """
        return Feed(self._client, after, ids, kinds)
