"""`Batch`: any number of jobs that are added while the batch is open, with callbacks after their end."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from dibs.client.calls.bound_job import Bound
from dibs.client.options.arguments import Seconds, duration_ms, new_id
from dibs.client.options.job_settings import encode_attributes
from dibs.client.ticket import Ticket
from dibs.errors import NotRunning, Refused
from dibs.flow.batch.plan import (
    BATCH_ATTRIBUTE,
    MAX_BATCH_ID,
    BatchPlan,
    BatchSummary,
    decode_summary,
    encode_batch_plan,
    is_batch,
)
from dibs.flow.batch.segments import KEPT, PRODUCERS
from dibs.flow.batch.stored_batch import MemberResult, StoredBatch
from dibs.flow.builder import check_attributes, keep_ms
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan
from dibs.model.check_jobs import check_request
from dibs.model.check_values import check_text
from dibs.model.job import JobData, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import EnqueueRequest, Reject
from dibs.model.results import CancelStatus, EnqueueResult
from dibs.model.wakeup import FLOWS

if TYPE_CHECKING:
    from dibs.client.sync.flow import BlockingBatch

#: The most bytes of the attributes that the caller sets.
MAX_ATTRIBUTES: Final = LIMITS.attributes // 4


class Batch:
    """Jobs with callbacks after their end, returned by `app.batch()`.

    Use it as `async with app.batch(...) as batch:`. The begin of the block enqueues the batch, and its end
    closes it. After an exception in the block the batch stays open for `open_for`, so that the program may
    add the rest of the members under the same id.
    """

    def __init__(
        self,
        context: FlowContext,
        id: str | None,
        callbacks: dict[str, Plan],
        *,
        keep: Seconds | None,
        open_for: Seconds,
        attributes: Mapping[str, Any] | None,
    ) -> None:
        if id is not None:
            check_text("id", id, MAX_BATCH_ID)
        self._context = context
        self._client = context.flows
        keep_for = None if keep is None else keep_ms(keep)
        self._plan = BatchPlan(callbacks=callbacks, keep=keep_for, open_for=_open_ms(open_for))
        self._attributes = encode_attributes(attributes)
        check_attributes(self._attributes)
        _check_size(self._attributes)
        self._ticket: Ticket[BatchSummary] | None = None
        self.id: str = new_id() if id is None else id
        """Id of the batch."""
        self._stored = StoredBatch(context, self.id)

    def __repr__(self) -> str:
        return f"<Batch {self.id!r}>"

    @property
    def sync(self) -> BlockingBatch:
        """This batch with blocking methods, for code without an event loop."""
        from dibs.client.sync.flow import BlockingBatch  # noqa: PLC0415 - async programs never load it

        return BlockingBatch(self)

    @property
    def ticket(self) -> Ticket[BatchSummary]:
        """The ticket of the batch; its result is the summary. Raises NotRunning before the `async with`."""
        if self._ticket is None:
            raise NotRunning(f"the batch {self.id!r} is not enqueued yet; use `async with` for it first")
        return self._ticket

    async def __aenter__(self) -> Self:
        """Enqueue the batch. With the id of an open batch, members are added to that batch."""
        request = self._build_request()
        async with self._client.slot() as (slot, expires):
            answer = await self._client.enqueue(slot, request, expires)
        self._ticket = Ticket(self._client, self.id, answer.revision, decode_summary, answer)
        await self._join_as_producer(answer)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the batch, unless the block raised an exception."""
        if kind is None:
            await self.close()

    async def enqueue_many(self, jobs: Iterable[Bound[Any]] | AsyncIterable[Bound[Any]]) -> int:
        """Add jobs, made with `task.bind(...)`, and return their number. See StoredBatch.enqueue_many."""
        return await self._stored.enqueue_many(jobs)

    async def close(self) -> bool:
        """Close the batch: it gets no further members. Return whether it has not ended."""
        return await self._stored.close()

    async def cancel(self) -> CancelStatus:
        """Close the batch and cancel its members that have not ended. See StoredBatch.cancel."""
        return await self._stored.cancel()

    async def progress(self) -> AsyncIterator[BatchSummary]:
        """Yield the summary of the members so far, each time it was noted, until the batch has ended."""
        async for summary in self._stored.progress():
            yield summary

    async def results(self) -> AsyncIterator[MemberResult]:
        """Wait for the end of the batch, then yield each member with its result or its error.

        Use it as `async for result in batch.results():`. See StoredBatch.results.
        """
        async for result in self._stored.results():
            yield result

    def _build_request(self) -> EnqueueRequest:
        keep = self._plan.keep
        attributes = {**self._attributes, BATCH_ATTRIBUTE: msgspec.json.encode(self.id)}
        retention = msgspec.structs.replace(KEPT, completed=keep, failed=keep, cancelled=keep)
        data = JobData(payload=encode_batch_plan(self._plan), attributes=attributes, retention=retention)
        request = EnqueueRequest(job=NewJob(id=self.id, data=data), on_conflict=Reject())
        check_request(request)
        return request

    async def _join_as_producer(self, answer: EnqueueResult) -> None:
        """Remember the batch that was just made, so that its first members need no read of it.

        Raises Refused if the id belongs to a flow.
        """
        opened = await self._client.storage_handle.ensure_open()
        if answer.status == "queued":
            PRODUCERS.put(opened, self.id, answer.revision, self._plan.keep)
            return
        (slot,) = await opened.bounded.get(FLOWS, [self.id])
        if slot.current is not None and not is_batch(slot.current.data.attributes):
            raise Refused(f"the id {self.id!r} is that of a flow which runs; choose another id", field="id")


def _check_size(attributes: Mapping[str, bytes]) -> None:
    size = sum(len(name.encode()) + len(value) for name, value in attributes.items())
    if size > MAX_ATTRIBUTES:
        raise Refused(
            f"attributes have {size:,} bytes; the limit for a batch is {MAX_ATTRIBUTES:,}, because the batch "
            "keeps notes in further attributes",
            field="attributes",
        )


def _open_ms(open_for: Seconds) -> int:
    ms = duration_ms("open_for", open_for)
    if ms < 1000:
        raise Refused(f"open_for is {open_for}; pass at least one second", field="open_for")
    return ms
