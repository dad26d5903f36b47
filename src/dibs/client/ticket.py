"""Tickets: `enqueue` returns a ticket, and `ticket.result()` waits for the result of this enqueue.

If the same id is enqueued several times, each enqueue has a separate ticket.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, overload

import msgspec
from msgspec.structs import replace

from dibs.client.calls.signals import SIGNAL_STATUSES, SignalStatus, signal_request
from dibs.client.connection.outcome_wait import OutcomeWait, encoded_result, watch_progress
from dibs.client.connection.queue_client import EnqueuedBatch, QueueClient
from dibs.client.options.arguments import Seconds, wait_ms
from dibs.client.options.job_settings import NO_RETENTION, extend_retention, retention_for_wait
from dibs.client.output import Chunk, read_output
from dibs.client.status import JobState, Status, enqueue_status
from dibs.errors import ConfigurationError, JobAbsent, JobDropped, QueueFull
from dibs.model.job import OutcomeRetention
from dibs.model.requests import EnqueueRequest
from dibs.model.results import CancelStatus, EnqueueResult, EnqueueStatus
from dibs.model.rules import ABSENT, STOPPED, TicketState

if TYPE_CHECKING:
    from dibs.client.sync.queue import BlockingTicket

R = TypeVar("R")
#: Returns an encoded result as the return type of the function of a task. Raises ValueError.
ResultDecoder = Callable[[bytes], Any]

#: Seconds that a call waits for a result by default.
DEFAULT_WAIT = 60.0
#: The same in ms. A call with the default wait needs no conversion of its seconds.
_DEFAULT_WAIT_MS: Final = wait_ms(DEFAULT_WAIT)


async def extend_request_retention(
    client: QueueClient, request: EnqueueRequest, wait: Seconds | None
) -> EnqueueRequest:
    """Return the request with a retention that keeps the outcome longer than a wait of `wait` seconds.

    Without this the outcome might expire before the caller reads it.
    """
    job, longest = request.job, _wait_ms(wait)
    own, of_queue = own_retention(request), await client.retention()
    if own is NO_RETENTION:
        extended = retention_for_wait(of_queue, longest)
    else:
        extended = extend_retention(of_queue, longest, own)
    if extended == own:
        return request
    return replace(request, job=replace(job, data=replace(job.data, retention=extended)))


def own_retention(request: EnqueueRequest) -> OutcomeRetention:
    """Return the retention that a request sets; the fields that it leaves to the queue are unset."""
    return request.job.data.retention or NO_RETENTION


def _wait_ms(wait: Seconds | None) -> int:
    if wait is DEFAULT_WAIT:
        return _DEFAULT_WAIT_MS
    return 0 if wait is None else wait_ms(wait)


class Ticket(Generic[R]):
    """One enqueue of a job: its id and revision, its state, its result."""

    def __init__(
        self,
        client: QueueClient,
        id: str,
        revision: int,
        decode: ResultDecoder | None = None,
        answer: EnqueueResult | None = None,
        retention: OutcomeRetention | None = None,
    ) -> None:
        self._client = client
        #: The own retention of a new job, from its request; None if this ticket knows none.
        self._retention = retention if answer and answer.status == "queued" and not answer.repeated else None
        self._decode = decode or client.serde.decode
        self._outcome = answer.outcome if answer and answer.status in ("completed", "failed") else None
        self.queue: str = client.name
        """Name of the queue."""
        self.id: str = answer.id or id if answer else id
        """Id of the job. If `repeated`, the id of the first enqueue with that request_key."""
        self.revision: int = revision
        """Number of this enqueue. `queue.ticket(id, revision)` returns this ticket again, in any process.

        0 for a request that is "absent", "full" or "dropped".
        """
        self.verdict: EnqueueStatus | None = answer.status if answer else None
        """Effect of the enqueue: "queued", "updated" or "blocked".

        With Reject also "duplicate", "completed" or "failed", with Update(create=False) also "absent". A
        queue at its `max_waiting` gives "dropped", or "full" in the tickets of QueueFull. None for a ticket
        of `queue.ticket(...)`.
        """
        self.repeated: bool = answer.repeated if answer else False
        """True if the request_key was known.

        The enqueue changed no job then, and this ticket has the answer of the first enqueue with that key.
        """

    def __repr__(self) -> str:
        verdict = f" {self.verdict}" if self.verdict else ""
        return f"<Ticket {self.queue}/{self.id} revision {self.revision}{verdict}>"

    @property
    def sync(self) -> BlockingTicket[R]:
        """This ticket with blocking methods, for code without an event loop."""
        from dibs.client.sync.queue import BlockingTicket  # noqa: PLC0415 - async programs never load it

        return BlockingTicket(self)

    async def result(self, wait: Seconds | None = DEFAULT_WAIT) -> R:
        """Wait for the end of this enqueue and return the result of its job.

            try:
                text = await ticket.result(wait="10s")
            except JobFailed as failed:
                print(failed.error)

        `wait` is in seconds; None waits until the job ends. Only the run of this enqueue counts, or the run
        of a later enqueue that replaced it (contract 1, Done). The outcome is kept at least for `wait` and
        one minute.

        Raises JobFailed, JobCancelled, OutcomeNotKept if the outcome is no longer kept, JobAbsent at once for
        an Update(create=False) that found no live job, JobDropped at once for a job that a queue at its
        `max_waiting` did not take, and WaitTimeout; after WaitTimeout the job stays in
        the queue.
        """
        self._check_present()
        state = await self._wait_for_end(wait)
        result: R = self._decode_result(encoded_result(self._client, self.id, self.revision, state))
        return result

    async def _wait_for_end(self, wait: Seconds | None) -> TicketState:
        if self._outcome is not None:
            return TicketState(self._outcome.kind, self._outcome)
        seconds = None if wait is None else wait_ms(wait) / 1000
        waiting = OutcomeWait(self._client, self.id, self.revision, seconds, self._retention)
        return await waiting.wait_for_end()

    def _decode_result(self, raw: bytes | None) -> Any:
        if raw is None:
            return None
        try:
            return self._decode(raw)
        except ValueError as error:
            raise ConfigurationError(
                f"the result of {self.queue}/{self.id} does not fit the return type of its handler: {error}"
            ) from error

    def _check_present(self) -> None:
        """Raise JobAbsent or JobDropped if no job has this revision: the enqueue had no effect."""
        if self.verdict in STOPPED:
            raise JobDropped(queue=self.queue, id=self.id)
        if self.revision == ABSENT.revision:
            raise JobAbsent(queue=self.queue, id=self.id)

    async def progress(self) -> AsyncIterator[Any]:
        """Yield each value that the job reports with `progress`, until this enqueue has ended.

            async for value in ticket.progress():
                print(value)

        Use it as `async for value in ticket.progress():`. A value that was reported before comes first. Of
        several reports in a row, only the latest may come. The last value of the run that ended comes last,
        if its outcome is kept. A retried run goes on with the values of its next run. Afterwards
        `ticket.result()` returns at once.

        Raises JobAbsent, JobDropped, StorageError.
        """
        self._check_present()
        async for value in watch_progress(self._client, self.id, self.revision):
            yield msgspec.json.decode(value)

    async def output(self, *, after: str | None = None, follow: bool = True) -> AsyncIterator[Chunk]:
        """Yield what the runs of this enqueue write with `current_job().write`, until it has ended.

            async for chunk in ticket.output():
                print(chunk.value)

        Use it as `async for chunk in ticket.output():`. What was written before comes first. A retried run
        goes on with the chunks of its next run: `Chunk.attempt` then changes.

        - `after`: `Chunk.offset` of the last chunk that a reader has; the next one comes first. Default
          None: from the beginning.
        - `follow`: False ends with what is written now.

        Raises JobAbsent, JobDropped; Refused for a bad offset, and on a storage that keeps no output;
        StorageError.
        """
        self._check_present()
        async for chunk in read_output(self._client, self.id, self.revision, after, follow=follow):
            yield chunk

    async def status(self) -> Status:
        """Return the state of this enqueue. It is `not_kept` after the outcome has expired.

        Example: `state = (await ticket.status()).state`
        """
        if self.revision == ABSENT.revision:
            state: JobState = "dropped" if self.verdict in STOPPED else "absent"
            return Status(queue=self.queue, id=self.id, state=state)
        return enqueue_status(self._client, self.id, await self._client.get(self.id), self.revision)

    async def cancel(self, *, running: bool = False) -> CancelStatus:
        """Cancel the job of this ticket's id, and return the effect; see Queue.cancel.

        Example: `effect = await ticket.cancel(running=True)`
        """
        storage = await self._client.bounded_storage()
        return (await storage.cancel(self.queue, [self.id], running=running))[0]

    async def signal(
        self, name: str, value: Any = None, *, request_key: str | None = None, connection: Any = None
    ) -> SignalStatus:
        """Send a value to the live job of this ticket's id; see Queue.signal.

        Example: `answer = await ticket.signal("approved", True)`
        """
        request = signal_request(self._client.serde, self.id, name, value, request_key)
        return SIGNAL_STATUSES[(await self._client.send(request, connection)).status]


def check_taken(ticket: Ticket[R]) -> Ticket[R]:
    """Return the ticket of an enqueue. Raise QueueFull if the queue refused the job."""
    if ticket.verdict == "full":
        raise QueueFull(
            f"queue {ticket.queue!r} has as many waiting jobs as its max_waiting allows, so it did not take "
            f"{ticket.id!r}; enqueue it again later, or raise max_waiting",
            queue=ticket.queue,
            tickets=[ticket],
        )
    return ticket


class Tickets(Sequence[Ticket[R]]):
    """The tickets of a batch, in the order of its jobs.

    The Ticket objects are created at the first access, because most callers of `enqueue_many` use no ticket.
    """

    def __init__(
        self, client: QueueClient, batch: EnqueuedBatch, decode: ResultDecoder | None = None
    ) -> None:
        self._client = client
        self._batch = batch
        self._decode = decode

    def __repr__(self) -> str:
        return f"<{len(self)} tickets of {self._client.name}>"

    def __len__(self) -> int:
        return len(self._batch.ids)

    @overload
    def __getitem__(self, index: int) -> Ticket[R]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Ticket[R]]: ...
    def __getitem__(self, index: int | slice) -> Ticket[R] | list[Ticket[R]]:
        """Return the ticket at an index, or a list of tickets for a slice."""
        return self._tickets[index]

    def __iter__(self) -> Iterator[Ticket[R]]:
        return iter(self._tickets)

    def checked(self) -> Tickets[R]:
        """Return these tickets. Raise QueueFull if the queue refused some of the jobs."""
        full = sum(answer.status == "full" for answer in self._batch.answers)
        if not full:
            return self
        raise QueueFull(
            f"queue {self._client.name!r} has as many waiting jobs as its max_waiting allows, so it did not "
            f"take {full:,} of {len(self):,} jobs; enqueue those again later (`tickets` of this error says "
            "which), or raise max_waiting",
            queue=self._client.name,
            tickets=self,
        )

    @cached_property
    def _tickets(self) -> list[Ticket[R]]:
        return [
            Ticket(self._client, id, answer.revision, self._decode, answer)
            for id, answer in zip(self._batch.ids, self._batch.answers, strict=True)
        ]
