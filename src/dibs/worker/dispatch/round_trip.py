"""Round trips to the storage: requests with settlements and claims for one or several queues, and replies."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from attrs import define, field
from msgspec import Struct

from dibs.errors import NotRunning, Refused, StorageBusy, StorageDamaged, StorageError
from dibs.model.error_text import summarize_exception
from dibs.model.requests import QueueStep, Settlement
from dibs.model.results import ClaimResult, SettleResult
from dibs.storage.abilities import ManyQueues
from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.execution.invocation import Invocation


class Reply(Struct, frozen=True):
    """The reply to one request, or the error that came instead."""

    #: Runs whose settlement the storage took or refused, in the order of `results`.
    settled: Sequence[Invocation] = ()
    results: Sequence[SettleResult] = ()
    #: Runs whose settlement must be sent again.
    unsettled: Sequence[Invocation] = ()
    #: The result of the claim; None if the request had no claim or the claim failed.
    claim: ClaimResult | None = None
    #: The error of the request; None if it succeeded.
    error: Exception | None = None
    #: True if the reply was lost, so that the storage may have claimed jobs that this process does not know.
    claim_unknown: bool = False
    #: True if the request had steps of several queues.
    shared: bool = False

    @property
    def reason(self) -> str:
        """Type and message of the error for a log line; "" if the request succeeded."""
        return "" if self.error is None else summarize_exception(self.error)

    @property
    def may_repeat_at_once(self) -> bool:
        """True if the request failed because of one of its queues, and the storage changed none of them."""
        return self.shared and isinstance(self.error, StorageBusy | Refused)


class ClaimWait(Struct, frozen=True):
    """The id of a blocking claim, which `wake_claim` takes, and its timeout in seconds."""

    claim_id: str
    seconds: float


class RoundTrip(Struct):
    """A request that settles runs, claims jobs, or does both, until its reply has been applied."""

    #: Runs that the request settles.
    settling: Sequence[Invocation]
    #: The lease for the claim; None if the request has no claim.
    lease: str | None
    #: The number of claimed jobs that can start at once. Their capacity is taken when the request is sent.
    reserved: int
    #: The largest number of jobs that the claim returns.
    limit: int
    #: The id and timeout of a blocking claim; None for other claims.
    wait: ClaimWait | None = None
    #: The reply; None until it has arrived.
    reply: Reply | None = None
    #: True if another claim failed while this one was in flight. This claim may have skipped jobs that the
    #: failed claim held, so few jobs in its reply do not prove that the queue is empty.
    other_failed: bool = False

    @property
    def prefetching(self) -> int:
        """The number of jobs of the claim that must wait for capacity."""
        return max(0, self.limit - self.reserved)


@define(eq=False)
class RoundTrips:
    """The requests of a queue that are in flight, and the runs to settle with its next request."""

    #: Runs whose settlement must be sent with the next request.
    outbox: list[Invocation] = field(factory=list)
    #: The requests in flight in the order they were sent: one, or two while both are large.
    in_flight: deque[RoundTrip] = field(factory=deque)
    #: True while the jobs of the queue are counted, see `OversizedQueues`.
    counting: bool = False
    #: The time until which the outbox waits for more settlements, by time.monotonic(); 0 if it does not wait.
    delayed_until: float = 0.0

    @property
    def busy(self) -> bool:
        """True while a request for the queue is in flight."""
        return self.counting or bool(self.in_flight)

    @property
    def prefetching(self) -> int:
        """The number of jobs that the claims in flight may prefetch."""
        return sum(trip.prefetching for trip in self.in_flight)

    def replies(self) -> Iterator[tuple[RoundTrip, Reply]]:
        """Remove and yield the round trips that have a reply, in the order they were sent.

        A round trip without a reply holds back those sent after it. If the server handles the requests in the
        order they were sent, jobs start in the order of the queue. The state is last updated by the reply to
        the latest request.
        """
        while self.in_flight and (reply := self.in_flight[0].reply) is not None:
            yield self.in_flight.popleft(), reply

    def is_second(self, trip: RoundTrip) -> bool:
        """Return whether `trip` is in flight behind another request."""
        return len(self.in_flight) > 1 and self.in_flight[-1] is trip


async def send(storage: Storage, queue: str, trip: RoundTrip) -> Reply:
    """Send the request of `trip` and return the reply. Never raises: errors are part of the reply."""
    try:
        results, claim = await _call_storage(storage, queue, trip)
    except Refused as refused:
        if not trip.settling:
            return Reply(error=refused)
        return await settle_singly(storage, queue, trip.settling)
    except Exception as error:  # noqa: BLE001 - a storage may raise anything
        return error_reply(error, trip.settling, claims=trip.lease is not None)
    return Reply(settled=trip.settling, results=results, claim=claim)


def error_reply(
    error: Exception, unsettled: Sequence[Invocation], *, claims: bool, shared: bool = False
) -> Reply:
    """Return the reply for an error of the storage. `claims` is whether the request had a claim.

    After OutcomeUnknown, or an error that is a bug of the storage, the storage may have claimed jobs. It may
    also find a damaged record only when it decodes the claimed jobs.
    """
    unclaimed = isinstance(error, StorageError | NotRunning | Refused)
    unknown = claims and (not unclaimed or isinstance(error, StorageDamaged))
    return Reply(unsettled=unsettled, error=error, claim_unknown=unknown, shared=shared)


async def send_shared(storage: Storage, trips: Sequence[tuple[str, RoundTrip]]) -> Sequence[Reply]:
    """Send one request for several queues, each with its round trip, and return the reply of each.

    Never raises: an error of the request is part of each reply.
    """
    lease = next((trip.lease for _, trip in trips if trip.lease is not None), "")
    steps = [QueueStep(queue, make_settlements(trip.settling), trip.limit) for queue, trip in trips]
    try:
        results = await cast("ManyQueues", storage).serve(steps, lease)
    except Exception as error:  # noqa: BLE001 - a storage may raise anything
        return [
            error_reply(error, trip.settling, claims=trip.lease is not None, shared=True) for _, trip in trips
        ]
    return [
        Reply(
            settled=trip.settling,
            results=result.settled,
            claim=None if trip.lease is None else result.claim,
            shared=True,
        )
        for (_, trip), result in zip(trips, results, strict=True)
    ]


async def _call_storage(
    storage: Storage, queue: str, trip: RoundTrip
) -> tuple[Sequence[SettleResult], ClaimResult | None]:
    if trip.lease is None:
        return await storage.settle(queue, make_settlements(trip.settling)), None
    if trip.wait is not None:
        return (), await cast("BlockingClaims", storage).claim_blocking(
            queue, trip.lease, trip.limit, claim_id=trip.wait.claim_id, timeout=trip.wait.seconds
        )
    if not trip.settling:
        return (), await storage.claim(queue, trip.lease, trip.limit)
    both = await storage.settle_and_claim(queue, make_settlements(trip.settling), trip.lease, trip.limit)
    return both.settled, both.claim


async def settle_singly(storage: Storage, queue: str, runs: Sequence[Invocation]) -> Reply:
    """Settle each run in a request of its own. The storage refuses a whole batch for one bad settlement."""
    results: list[SettleResult] = []
    for number, invocation in enumerate(runs):
        try:
            results += await storage.settle(queue, make_settlements([invocation]))
        except Refused as refused:
            results.append(SettleResult("refused", str(refused)))
        except Exception as error:  # noqa: BLE001 - any error of a storage; settling twice is safe by the fence
            return Reply(settled=runs[:number], results=results, unsettled=runs[number:], error=error)
    return Reply(settled=runs, results=results)


def make_settlements(runs: Iterable[Invocation]) -> list[Settlement]:
    """Return the decided actions of these runs in the form that the storage takes."""
    return [Settlement(id=run.job.id, fence=run.fence, action=run.action, cost=run.cost) for run in runs]
