"""One job held by hand: what it says, and the ways to let it go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.error_info import error_of
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.durations import Seconds, duration_ms, epoch_ms
from dibs.client.options.retention import Retention, build_retention
from dibs.client.options.serde import JSON
from dibs.client.status import attributes_in
from dibs.errors import JobCancelled, LeaseLost, Refused
from dibs.model import requests as model
from dibs.model.job import Error, Job
from dibs.model.results import SettleResult, SettleStatus
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.sync.claims import BlockingClaim


class Claim:
    """An active job, ours while its lease lives. Every way to let it go raises LeaseLost if it is not."""

    def __init__(
        self,
        client: QueueClient,
        job: Job,
        lease: str,
        let_go: Callable[[Any], None],
        *,
        handles_failure: bool,
    ) -> None:
        assert job.run is not None, "what was claimed is active"  # noqa: S101
        self._client = client
        self._job = job
        self._lease = lease
        #: Told of the connection whose commit it waits for, if any.
        self._let_go = let_go
        self._handles_failure = handles_failure
        own = job.data.overrides.lease if job.data.overrides else UNSET
        #: The lease that the job asks for in place of the receiver's, ms.
        self.lease_ms: int | None = None if own is UNSET else own
        self.queue: str = client.name
        self.id: str = job.id
        #: Pass it on, and outside systems can refuse a late writer.
        self.fence: int = job.run.fence
        #: Which claim of the job this is, from 1.
        self.attempt: int = job.attempts
        self.retries: int = job.retries
        self.stalls: int = job.stalls
        self.timeouts: int = job.timeouts
        #: Whether the lease ended, as far as a heartbeat has found.
        self.lost: bool = False
        #: Whether someone asked for the run to stop: then it will not come back.
        self.cancelled: bool = job.run.cancel_requested

    def __repr__(self) -> str:
        return f"<Claim {self.queue}/{self.id} fence {self.fence}>"

    @property
    def sync(self) -> BlockingClaim:
        """The same, blocking."""
        from dibs.client.sync.claims import BlockingClaim  # noqa: PLC0415 - only who blocks pays for it

        return BlockingClaim(self)

    @cached_property
    def data(self) -> Any:
        """What was enqueued; of a task {"args": [...], "kwargs": {...}}. Raises ValueError if unreadable."""
        return self._client.serde.decode(self._job.data.payload)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """Its attributes as they were when it was claimed."""
        return attributes_in(self._job.data)

    async def complete(
        self,
        result: Any = None,
        *,
        then: Iterable[Bound] = (),
        retention: Retention | Seconds | None = None,
        connection: Any = None,
    ) -> None:
        """End it well, and enqueue `then` in the same atomic step. A None retention leaves the job's own.

        With a connection of psycopg or SQLAlchemy it is part of the transaction there. After a rollback
        it may be settled again while its lease lasts, which is no longer renewed for it.
        """
        raw = self._client.serde.encode(result)
        kept = None if retention is None else build_retention(retention)
        how = model.Complete(result=raw, then=await self._follow_ups(then), retention=kept)
        await self._settle(how, connection)

    async def fail(
        self, error: BaseException | str, *, then: Iterable[Bound] = (), connection: Any = None
    ) -> None:
        """End it for good with an error; a failure handler of the app is told in the same step.

        A connection is as in complete.
        """
        told = Error(type="Failed", message=error) if isinstance(error, str) else error_of(error)
        follow_ups = await self._follow_ups(then)
        how = model.Fail(error=told, handled=self._handles_failure, then=follow_ups)
        await self._settle(how, connection)

    async def retry(
        self,
        at: datetime | None = None,
        *,
        delay: Seconds | None = None,
        error: BaseException | None = None,
    ) -> SettleStatus:
        """Let it wait again until `at`, for `delay` seconds, or for now: retries + 1.

        Returns `returned`, or `cancelled` if that was asked for: such a run does not come back.
        """
        if at is not None and delay is not None:
            raise Refused("at and delay exclude each other: give one", field="delay")
        how = model.RetryLater(
            run_at=None if at is None else epoch_ms("at", at),
            delay=None if delay is None else duration_ms("delay", delay),
            error=None if error is None else error_of(error),
        )
        return (await self._settle(how)).status

    async def release(self) -> SettleStatus:
        """Let it wait again as before the claim. Returns as retry does."""
        return (await self._settle(model.Release())).status

    async def hand_off(self) -> int:
        """Leave the lease: someone else ends it by queue.finish(id, revision), with the revision returned.

        It is never brought back. Raises JobCancelled if that was asked for: then it has ended.
        """
        answer = await self._settle(model.HandOff())
        if answer.status == "cancelled":
            raise JobCancelled(queue=self.queue, id=self.id)
        return answer.revision

    async def extend(self, seconds: Seconds) -> None:
        """Let the lease last at least this long from now, for all that is held under it."""
        storage = await self._client.storage()
        state = (await storage.renew([self.queue], self._lease, lease_ms(seconds)))[self.queue]
        if not state.alive:
            raise self._gone()

    async def progress(self, value: Any) -> None:
        """Keep progress, any JSON value up to 1 MiB, on the job, for everyone to see."""
        storage = await self._client.storage()
        if await storage.report(self.queue, self.id, self.fence, JSON.encode(value)) == "lost":
            raise self._gone()

    async def _settle(self, how: model.SettleAction, connection: Any = None) -> SettleResult:
        settlement = model.Settlement(id=self.id, fence=self.fence, how=how)
        answer = await self._client.settle(settlement, connection)
        if answer.status == "lost":
            raise self._gone()
        if answer.status == "refused":
            raise Refused(answer.reason)
        self._let_go(connection)
        return answer

    def _gone(self) -> LeaseLost:
        self.lost = True
        self._let_go(None)
        return LeaseLost(f"{self.queue}/{self.id}: its lease ended, and someone else may run it now")

    async def _follow_ups(self, then: Iterable[Bound]) -> tuple[model.FollowUp, ...]:
        follow_ups = tuple(bound.as_then() for bound in then)
        check_cross_queue(await self._client.storage(), self.queue, follow_ups)
        return follow_ups


def check_cross_queue(storage: Storage, queue: str, then: Iterable[model.FollowUp]) -> None:
    """Refuse follow-ups that the storage cannot enqueue in one step with an end in this queue."""
    for item in then:
        if item.queue != queue and not storage.capabilities.cross_queue:
            raise Refused(
                f"this storage cannot enqueue to {item.queue!r} in one step with an end in {queue!r}",
                field="then",
            )


def lease_ms(seconds: Seconds) -> int:
    """Return the length of a lease as ms. Raises Refused for nothing or less."""
    ms = duration_ms("lease", seconds)
    if ms <= 0:
        raise Refused(f"lease is {seconds}; it must be more than 0 seconds", field="lease")
    return ms
