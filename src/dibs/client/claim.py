"""Claims: active jobs that a program holds through a Receiver, and the ways to settle them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from dibs.client.calls.bound_job import Bound
from dibs.client.calls.failure import error_from_exception
from dibs.client.connection.queue_client import QueueClient
from dibs.client.options.arguments import Seconds, check_error, check_list, duration_ms, epoch_ms
from dibs.client.options.job_settings import Retention, build_retention
from dibs.client.options.serde import JSON
from dibs.client.status import decode_attributes
from dibs.errors import JobCancelled, LeaseLost, Refused
from dibs.model import requests as model
from dibs.model.check_values import check_whole_number
from dibs.model.job import Error, Job
from dibs.model.limits import MOST_COST, START_COST
from dibs.model.results import SettleResult, SettleStatus
from dibs.model.schedule import NAME_PREFIX, read_schedule, refuse_hand_off, with_next_tick
from dibs.model.wakeup import FLOW_ATTRIBUTE, with_wake_up
from dibs.storage.protocol import Storage

if TYPE_CHECKING:
    from dibs.client.sync.claim import BlockingClaim


class Claim:
    """An active job that this program holds until the claim is settled or its lease ends.

    `complete`, `fail`, `retry`, `release` and `hand_off` settle the claim. All methods raise LeaseLost after
    the lease has ended: the job may run elsewhere then.
    """

    # Long, because it copies the fields of the job that users read, each with its docs for editors.
    def __init__(
        self,
        client: QueueClient,
        job: Job,
        lease: str,
        on_settled: Callable[[Any], None],
    ) -> None:
        assert job.run is not None, "bug in dibs: the storage returned a claimed job without a run"  # noqa: S101
        self._client = client
        self._job = job
        self._lease = lease
        #: Called when the claim is settled or found lost. The argument is the `connection` in whose
        #: transaction the claim was settled, or None.
        self._on_settled = on_settled
        own = job.data.overrides.lease if job.data.overrides else UNSET
        self.lease_ms: int | None = None if own is UNSET else own
        """Least length of the lease in ms that the job asks for; None if it asks for none."""
        self.queue: str = client.name
        """Name of the queue."""
        self.id: str = job.id
        """Id of the job."""
        self._claimed_at = job.run.claimed_at
        self._received_at = time.monotonic()
        self.fence: int = job.run.fence
        """Number of this run, which grows with each claim of the id.

        Pass it to other systems, so that they can refuse writes of an earlier run.
        """
        self.attempt: int = job.attempts
        """Number of this claim of the job, from 1."""
        self.retries: int = job.retries
        """Number of times the job returned to the queue after an error."""
        self.stalls: int = job.stalls
        """Number of times the job returned to the queue because its holder was gone."""
        self.timeouts: int = job.timeouts
        """Number of times the job returned to the queue after a timeout."""
        self.lost: bool = False
        """True after a heartbeat found that the lease has ended."""
        self.cancelled: bool = job.run.cancel_requested
        """True if the run was asked to stop. A cancelled job does not return to the queue."""
        self._cost: int | None = None

    def __repr__(self) -> str:
        return f"<Claim {self.queue}/{self.id} fence {self.fence}{' lost' if self.lost else ''}>"

    @property
    def sync(self) -> BlockingClaim:
        """This claim with blocking methods, for code without an event loop."""
        from dibs.client.sync.claim import BlockingClaim  # noqa: PLC0415 - async programs never load it

        return BlockingClaim(self)

    @cached_property
    def data(self) -> Any:
        """The data of the job; for a task {"args": [...], "kwargs": {...}}.

        Raises ValueError if the queue's serde cannot decode it.
        """
        return self._client.serde.decode(self._job.data.payload)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of the job at the time of the claim."""
        return decode_attributes(self._job.data.attributes)

    async def complete(
        self,
        result: Any = None,
        *,
        then: Iterable[Bound[Any]] = (),
        retention: Retention | Seconds | None = None,
        connection: Any = None,
    ) -> None:
        """Complete the job with a result that the queue's serde can encode.

            await claim.complete({"sent": True}, then=[queue.bind({"to": "bo@example.org"})], retention="1d")

        - `then`: jobs, made with `bind`, that are enqueued in the same atomic step.
        - `retention`: how long the outcome is kept, in seconds or as a Retention. Default: the retention of
          the job.
        - `connection`: connection of psycopg, SQLAlchemy or Django, whose transaction settles the claim.
          After a rollback it may be settled again until its lease ends; this lease is no longer renewed.

        Raises LeaseLost, Refused, OutcomeUnknown if the reply of the storage was lost.
        """
        raw = self._client.serde.encode(result)
        outcome_retention = None if retention is None else build_retention(retention)
        action = model.Complete(
            result=raw, then=await self._build_follow_ups(then), retention=outcome_retention
        )
        await self._settle(action, connection)

    async def fail(
        self, error: BaseException | str, *, then: Iterable[Bound[Any]] = (), connection: Any = None
    ) -> None:
        """Fail the job with an error, without a retry.

            await claim.fail(ValueError("no such address"))

        If the queue has a failure handler, its job is enqueued in the same atomic step. `then` and
        `connection` are those of `complete`.
        """
        if not isinstance(error, str):
            check_error(error)
        stored = (
            Error(type="Failed", message=error) if isinstance(error, str) else error_from_exception(error)
        )
        follow_ups = await self._build_follow_ups(then)
        action = model.Fail(error=stored, then=follow_ups)
        await self._settle(action, connection)

    async def retry(
        self,
        at: datetime | None = None,
        *,
        delay: Seconds | None = None,
        error: BaseException | None = None,
    ) -> SettleStatus:
        """Return the job to the queue and count a retry. It may start at once, after `delay` s, or from `at`.

            assert await claim.retry(delay="30s", error=TimeoutError("no answer")) == "returned"

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        if at is not None and delay is not None:
            raise Refused("at and delay are both set; pass only one", field="delay")
        if error is not None:
            check_error(error)
        action = model.RetryLater(
            run_at=None if at is None else epoch_ms("at", at),
            delay=None if delay is None else duration_ms("delay", delay),
            error=None if error is None else error_from_exception(error),
        )
        return (await self._settle(action)).status

    async def release(self, *, delay: Seconds | None = None, until: datetime | None = None) -> SettleStatus:
        """Return the job to the queue without counting an attempt or a retry.

            assert await claim.release() == "returned"

        It may start at once, after `delay` s, or from `until`. Without both it keeps its place in the queue.

        Returns "returned", or "cancelled" if the run was asked to stop: the job has ended then.
        """
        if delay is not None and until is not None:
            raise Refused("delay and until are both set; pass only one", field="delay")
        action = model.Release(
            delay=None if delay is None else duration_ms("delay", delay),
            run_at=None if until is None else epoch_ms("until", until),
        )
        return (await self._settle(action)).status

    async def hand_off(self) -> int:
        """Hand the job off: it stays active without a lease until `queue.finish(id, revision)` ends it.

            revision = await claim.hand_off()
            await queue.finish(claim.id, revision, result="signed")  # hours later, from any program

        Returns that revision. A handed-off job never returns to the queue by itself. Raises JobCancelled if
        the run was asked to stop: the job has ended then.
        """
        refuse_hand_off(self._job)
        answer = await self._settle(model.HandOff())
        if answer.status == "cancelled":
            raise JobCancelled(queue=self.queue, id=self.id)
        return answer.revision

    async def extend(self, seconds: Seconds) -> None:
        """Renew the lease, so that it ends no earlier than `seconds` from now.

            await claim.extend("5m")

        The receiver's other claims under this lease are renewed, too. Raises LeaseLost if it has ended.
        """
        storage = await self._client.bounded_storage()
        state = (await storage.renew([self.queue], self._lease, to_lease_ms(seconds, "seconds")))[self.queue]
        if not state.alive:
            raise self._mark_lost()

    async def progress(self, value: Any) -> None:
        """Store the progress of the job, any JSON value of at most 1 MiB. `queue.get(id)` returns it.

            await claim.progress({"percent": 40})

        Raises LeaseLost if the lease has ended, Refused if JSON cannot encode the value.
        """
        storage = await self._client.bounded_storage()
        if await storage.report(self.queue, self.id, self.fence, JSON.encode(value)) == "lost":
            raise self._mark_lost()

    def spent(self, amount: int, *, unit: int = START_COST) -> None:
        """Say what this run has spent, for example tokens, in the `unit` of the rate of its queue.

            claim.spent(3_200, unit=500)

        The rates of the queue then count this amount in place of `unit`, which the claim has charged; without
        a unit, 1,000 is one start. Several calls add up, each rounded up to a thousandth of a start, and
        `spent(0)` gives the start back. It counts when the claim is settled, and not if its lease ends.

        Raises Refused, a ValueError, for another value than a whole number from 0, and for a sum of more than
        1,000,000 starts.
        """
        before = self._cost or 0
        check_whole_number("unit", unit, 1, MOST_COST)
        check_whole_number("amount", amount, 0, (MOST_COST - before) * unit // START_COST)
        self._cost = before + -(-int(amount) * START_COST // unit)

    async def _settle(self, action: model.SettleAction, connection: Any = None) -> SettleResult:
        if FLOW_ATTRIBUTE in self._job.data.attributes:
            action = with_wake_up(action, self.id, self._job.data.attributes)
        if self.id.startswith(NAME_PREFIX) and (schedule := read_schedule(self._job.data)) is not None:
            at = {"claimed_at": self._claimed_at, "now": self._claimed_at + _ms_since(self._received_at)}
            action = with_next_tick(schedule, self.queue, self.id, action, **at)
        settlement = model.Settlement(id=self.id, fence=self.fence, action=action, cost=self._cost)
        answer = await self._client.settle(settlement, connection)
        if answer.status == "lost":
            raise self._mark_lost()
        if answer.status == "refused":
            raise Refused(answer.reason)
        self._on_settled(connection)
        return answer

    def _mark_lost(self) -> LeaseLost:
        self.lost = True
        self._on_settled(None)
        return LeaseLost(
            f"{self.queue}/{self.id}: the lease has ended, and another worker may run the job now"
        )

    async def _build_follow_ups(self, then: Iterable[Bound[Any]]) -> tuple[model.FollowUp, ...]:
        follow_ups = tuple(bound.as_follow_up() for bound in _check_then(then))
        check_cross_queue(await self._client.storage(), self.queue, follow_ups)
        return follow_ups


def _ms_since(moment: float) -> int:
    return round((time.monotonic() - moment) * 1000)


def _check_then(then: Iterable[Bound[Any]]) -> Iterable[Bound[Any]]:
    """Return the jobs of `then`. Raise Refused for anything else than a list of bound jobs."""
    check_list("then", then)
    bound = tuple(then)
    for one in bound:
        if not isinstance(one, Bound):
            raise Refused(
                f"then contains {one!r:.60}; make each job with task.bind(...) or queue.bind(...)",
                field="then",
            )
    return bound


def check_cross_queue(storage: Storage, queue: str, then: Iterable[model.FollowUp]) -> None:
    """Raise Refused if a follow-up is for another queue and the storage lacks `cross_queue`.

    With this capability a storage enqueues to other queues in the same atomic step as it ends a job.
    """
    for item in then:
        if item.queue != queue and not storage.capabilities.cross_queue:
            raise Refused(
                f"this storage cannot enqueue to {item.queue!r} in one step with the end of a job of "
                f"{queue!r}; enqueue it before you settle the claim",
                field="then",
            )


def to_lease_ms(seconds: Seconds, field: str = "lease") -> int:
    """Return the length of a lease in ms, rounded up. Raises Refused unless it is more than 0."""
    ms = duration_ms(field, seconds)
    if ms <= 0:
        raise Refused(f"{field} is {seconds}; it must be more than 0 seconds", field=field)
    return ms
