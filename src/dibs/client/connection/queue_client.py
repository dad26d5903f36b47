"""The client of one queue, which `Queue`, `Task`, `Ticket` and `Claim` share to call the storage, and the
clients of all queues of an app.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any, NamedTuple, NoReturn

from attrs import define, field

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.handler import EnqueueMiddleware
from dibs.client.connection.call_limits import MAX_STARTS, nested_calls
from dibs.client.connection.coalesced_calls import job_size, storage_limits
from dibs.client.connection.open_storage import OpenStorage
from dibs.client.connection.pending_calls import MAX_BATCH_BYTES, MAX_BATCH_ITEMS
from dibs.client.connection.shared_waits import EndWaiter, WaitGroup
from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.connection.transactions import TransactionCalls, in_transaction
from dibs.client.options.serde import JSON, Serde
from dibs.errors import BatchRefused, ConfigurationError, DibsError, Refused
from dibs.model.check_jobs import CheckedBatch, check_enqueue_queue, check_queue, check_request
from dibs.model.job import FAIL_SUFFIX, OutcomeRetention, Slot
from dibs.model.limits import Limits
from dibs.model.plain_values import to_plain_text
from dibs.model.requests import EnqueueRequest, SettingsPatch, Settlement
from dibs.model.results import EnqueueResult, SettleResult
from dibs.storage.abilities import OnOutcome, StopWatching
from dibs.storage.protocol import Storage


class EnqueuedBatch(NamedTuple):
    """The ids of an `enqueue_many` and the answer to each, in the order of its jobs."""

    ids: list[str]
    answers: list[EnqueueResult]


@define(eq=False)
class QueueClient:
    """One queue of an app: its name, its serde, and the calls of the storage for this queue."""

    storage_handle: StorageHandle
    name: str = field(converter=to_plain_text)
    serde: Serde

    @property
    def label(self) -> str:
        """The name and the storage of the queue for `repr`, without a password: "'mail' of file:./jobs"."""
        return f"{self.name!r} of {self.storage_handle.redacted_url}"

    async def storage(self) -> Storage:
        """Return the storage. Opens it at the first use; raises NotRunning after `app.close`."""
        return (await self.storage_handle.ensure_open()).storage

    async def bounded_storage(self) -> Storage:
        """Return the storage with the deadline of a call: its verbs raise StorageBusy or OutcomeUnknown."""
        return (await self.storage_handle.ensure_open()).bounded

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[tuple[OpenStorage, float | None]]:
        """Hold a slot for an enqueue; yield the storage, and the deadline if the call waited for its slot.

        Raises StorageBusy if no slot gets free within the timeout of a call.
        """
        opened = await self.storage_handle.ensure_open()
        turn = opened.slots.acquire(self.name)
        try:
            yield opened, None if turn is None else await turn
        finally:
            opened.slots.release(turn)

    def enqueue(
        self, opened: OpenStorage, request: EnqueueRequest, expires: float | None = None
    ) -> Coroutine[Any, Any, EnqueueResult]:
        """Return the call that enqueues one request, coalesced with concurrent calls.

        The caller holds a slot of `opened.slots`. `expires` is the deadline, on the clock of the event loop.
        Default: the timeout of a call from now. Raises Refused, and the call OutcomeUnknown, StorageError.
        """
        if (middleware := self.storage_handle.enqueue_middleware) is None:
            return opened.coalesced.enqueue(self.name, request, expires)
        return self._enqueue_in_middleware(middleware, opened, request, expires)

    async def _enqueue_in_middleware(
        self,
        middleware: EnqueueMiddleware,
        opened: OpenStorage,
        request: EnqueueRequest,
        expires: float | None,
    ) -> EnqueueResult:
        with nested_calls():
            async with middleware(self.name, [request]) as (sent,):
                return await opened.coalesced.enqueue(self.name, sent, expires)

    async def enqueue_in_transaction(self, request: EnqueueRequest, connection: Any) -> EnqueueResult:
        """Enqueue one request in the transaction of `connection`. Raises Refused, StorageError.

        The call needs no slot: calls with slots may wait for a lock that this transaction holds.
        """
        opened = await self.storage_handle.ensure_open()
        if self.storage_handle.enqueue_middleware is None:
            return await self._enqueue_in_transaction(opened, request, connection)
        async with self.storage_handle.enqueue_middleware(self.name, [request]) as (sent,):
            return await self._enqueue_in_transaction(opened, sent, connection)

    async def _enqueue_in_transaction(
        self, opened: OpenStorage, request: EnqueueRequest, connection: Any
    ) -> EnqueueResult:
        check_enqueue_queue(self.name, storage_limits(opened.storage))
        check_request(request, storage_limits(opened.storage))
        (answer,) = await (await in_transaction(opened.storage, connection)).enqueue(self.name, [request])
        return answer

    async def send(self, request: EnqueueRequest, connection: Any = None) -> EnqueueResult:
        """Enqueue one request by itself, or in the transaction of `connection`."""
        if connection is not None:
            return await self.enqueue_in_transaction(request, connection)
        (answer,) = await self.enqueue_requests([request])
        return answer

    async def settle(self, settlement: Settlement, connection: Any = None) -> SettleResult:
        """Store how one run ended, coalesced with concurrent calls or in the transaction of `connection`.

        The answer is "lost" if the lease of the run has ended. Raises Refused, OutcomeUnknown, StorageError.
        """
        opened = await self.storage_handle.ensure_open()
        if connection is None:
            return await opened.coalesced.settle(self.name, settlement)
        (answer,) = await (await in_transaction(opened.storage, connection)).settle(self.name, [settlement])
        return answer

    async def get(self, id: str) -> Slot:
        """Return everything stored for one id: current job, blocked successor and outcome."""
        return await (await self.storage_handle.ensure_open()).coalesced.get(self.name, id)

    async def join_wait(self, waiter: EndWaiter) -> WaitGroup:
        """Add a waiter for the end of an id; see SharedWaits.join."""
        return (await self.storage_handle.ensure_open()).waits.join(self.name, waiter)

    async def watch_end(self, id: str, revision: int, on_outcome: OnOutcome) -> StopWatching | None:
        """Call `on_outcome` when an id has ended. Return None if the storage cannot; see EndWatches."""
        watches = (await self.storage_handle.ensure_open()).end_watches
        return None if watches is None else watches.watch_end(self.name, id, revision, on_outcome)

    async def enqueue_all(self, jobs: Iterable[Bound[Any]], connection: Any = None) -> EnqueuedBatch:
        """Check all jobs, then enqueue them in batches. Raises BatchRefused before it sends any batch."""
        opened = await self.storage_handle.ensure_open()
        storage = opened.storage
        check_enqueue_queue(self.name, storage_limits(storage))
        requests = await check_bound_jobs(jobs, self.name, storage_limits(storage))
        target = opened.bounded if connection is None else await in_transaction(storage, connection)
        ids = [request.job.id for request in requests]
        if self.storage_handle.enqueue_middleware is None:
            return EnqueuedBatch(ids, await self._send_batches(target, requests))
        async with self.storage_handle.enqueue_middleware(self.name, requests) as sent:
            return EnqueuedBatch(ids, await self._send_batches(target, sent))

    async def enqueue_requests(self, requests: Sequence[EnqueueRequest]) -> Sequence[EnqueueResult]:
        """Enqueue requests in batches. Raises Refused, BatchRefused, OutcomeUnknown, StorageError."""
        opened = await self.storage_handle.ensure_open()
        if self.storage_handle.enqueue_middleware is None:
            return await self._send_batches(opened.bounded, requests)
        async with self.storage_handle.enqueue_middleware(self.name, requests) as sent:
            return await self._send_batches(opened.bounded, sent)

    async def _send_batches(
        self, target: Storage | TransactionCalls, requests: Sequence[EnqueueRequest]
    ) -> list[EnqueueResult]:
        answers: list[EnqueueResult] = []
        for batch in split_batches(requests):
            if answers:
                await asyncio.sleep(0)  # a storage in memory answers without a pause
            try:
                answers += await target.enqueue(self.name, batch)
            except DibsError as error:
                # In a transaction, the caller's rollback undoes the batches before.
                if not isinstance(target, TransactionCalls):
                    error.add_note(
                        f"the first {len(answers)} of {len(requests)} jobs were enqueued before this error"
                    )
                raise
        return answers

    async def retention(self) -> OutcomeRetention:
        """Return the retention that the queue is configured with, at most a minute old."""
        return await (await self.storage_handle.ensure_open()).retentions.get(self.name)

    async def known_retention(self) -> OutcomeRetention | None:
        """Return the same if it is known without a request, else None."""
        return (await self.storage_handle.ensure_open()).retentions.known(self.name)

    async def configure(self, patch: SettingsPatch) -> None:
        """Change settings of the queue. Raises Refused, StorageError."""
        opened = await self.storage_handle.ensure_open()
        try:
            await opened.bounded.configure(self.name, patch)
        finally:
            opened.retentions.forget()


async def check_bound_jobs(jobs: Iterable[Bound[Any]], queue: str, limits: Limits) -> CheckedBatch:
    """Return the requests of all jobs. Raises BatchRefused with a Refused for each invalid job.

    The event loop runs other tasks after each MAX_STARTS jobs: a generator encodes each job on demand.
    """
    requests: list[EnqueueRequest] = []
    refused: list[Refused] = []
    plain = True
    for index, bound in enumerate(jobs):
        if index % MAX_STARTS == MAX_STARTS - 1:
            await asyncio.sleep(0)
        try:
            _check_bound(bound)
            request = bound.request
            if bound.queue != queue:
                _refuse_other_queue(bound, queue)
            plain = check_request(request, limits) and plain
        except Refused as error:
            error.index = index
            refused.append(error)
        else:
            requests.append(request)
    if refused:
        total = len(requests) + len(refused)
        raise BatchRefused(
            f"{len(refused)} of {total} jobs are invalid, so no job was enqueued; correct them and repeat. "
            f"Job {refused[0].index}: {refused[0]}",
            refused,
        )
    return CheckedBatch.of(requests, limits, plain=plain)


def _check_bound(bound: object) -> None:
    if not isinstance(bound, Bound):
        raise Refused(
            f"jobs contains {bound!r:.60}, which is not bound; wrap each call in task.bind(...), as in "
            "send.bind('ada')",
            field="jobs",
        )


def _refuse_other_queue(bound: Bound[Any], queue: str) -> NoReturn:
    raise Refused(
        f"this job is bound to queue {bound.queue!r}; enqueue it there and not in {queue!r}", field="queue"
    )


def split_batches(requests: Sequence[EnqueueRequest]) -> Iterator[Sequence[EnqueueRequest]]:
    """Yield the requests in batches of at most MAX_BATCH_ITEMS and MAX_BATCH_BYTES.

    A job of more than MAX_BATCH_BYTES becomes a batch of its own.

    The batches of a CheckedBatch are CheckedBatch too.
    """
    begin, bytes_left = 0, MAX_BATCH_BYTES
    for index, request in enumerate(requests):
        size = job_size(request.job)
        bytes_left -= size
        if index > begin and (index - begin == MAX_BATCH_ITEMS or bytes_left < 0):
            yield _slice_requests(requests, begin, index)
            begin, bytes_left = index, MAX_BATCH_BYTES - size
    if requests:
        yield _slice_requests(requests, begin, len(requests))


def _slice_requests(requests: Sequence[EnqueueRequest], begin: int, end: int) -> Sequence[EnqueueRequest]:
    batch = requests[begin:end]
    if isinstance(requests, CheckedBatch):
        return CheckedBatch.of(batch, requests.within, plain=requests.plain)
    return batch


def split_ids(ids: Iterable[str], size: int = MAX_BATCH_ITEMS) -> Iterator[Sequence[str]]:
    """Yield the ids in batches of at most `size`. Raises Refused if `ids` is one text."""
    if isinstance(ids, str):
        # A str is an iterable of characters, and each character is a valid id.
        raise Refused(f"ids is the text {ids!r}; pass an iterable of ids, as in [{ids!r}]", field="ids")
    if not isinstance(ids, Iterable):
        raise Refused(f"ids is {ids!r:.80}; pass an iterable of ids", field="ids")
    rest = iter(ids)
    while part := tuple(islice(rest, size)):
        yield part


@define(eq=False)
class QueueClients:
    """The clients of the queues that an app has named so far. All share the storage of the app."""

    _storage_handle: StorageHandle
    _by_name: dict[str, QueueClient] = field(factory=dict, init=False)

    def get(self, name: str, serde: Serde | None) -> QueueClient:
        """Return the client of a queue; the first call makes it, with `serde` or the default serde.

        Raises Refused if the name is not allowed or `serde` is no serde, ConfigurationError if the queue has
        another serde.
        """
        check_queue(name)
        if serde is not None and not isinstance(serde, Serde):
            raise Refused(
                f"serde is {serde!r:.60}; pass an object with name, encode and decode, as JsonSerde()",
                field="serde",
            )
        known = self._by_name.get(name)
        if known is None:
            serde = serde or self._default_serde(name)
            known = self._by_name[name] = QueueClient(self._storage_handle, name, serde)
        if serde is not None and serde is not known.serde:
            raise ConfigurationError(
                f"queue {name!r} uses the serde {known.serde.name!r} already; "
                "pass serde= in the first call that names the queue"
            )
        return known

    def _default_serde(self, name: str) -> Serde:
        """Return the serde of a queue without `serde=`: JSON, or for a fail queue the serde of its queue.

        The fail queue of `emails` is `emails!fail`. A job of a fail queue has the payload of the failed job,
        byte for byte, so both queues need the same serde.
        """
        parent = self._by_name.get(name.removesuffix(FAIL_SUFFIX))
        return JSON if parent is None else parent.serde
