"""One round trip to the storage: settlements and a claim for one queue in one request, and its reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from dibs.errors import NotRunning, Refused, StorageError
from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, SettleResult
from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.execution.invocation import Invocation


class Reply(Struct, frozen=True):
    """The result of one round trip."""

    #: The runs whose settlement the storage answered, in the order of `results`.
    settled: Sequence[Invocation] = ()
    results: Sequence[SettleResult] = ()
    #: The runs whose settlement must be sent again.
    unsettled: Sequence[Invocation] = ()
    #: The claimed jobs; None if the request carried no claim, or the claim failed.
    claim: ClaimResult | None = None
    #: The reason why settlements must be sent again or the claim failed.
    error: Exception | None = None
    #: The storage may have claimed jobs that this process does not know (promise 7 of the contract).
    claim_unknown: bool = False


class ClaimWait(Struct, frozen=True):
    """The id of a blocking claim, by which `wake_claim` ends it, and the seconds it waits at most."""

    claim_id: str
    seconds: float


class RoundTrip(Struct):
    """One request that settles, claims, or both, from the moment it is sent until its reply is applied."""

    #: The runs that the request settles.
    settling: Sequence[Invocation]
    #: The lease to claim under; None if the request carries no claim.
    lease: str | None
    #: Jobs for which capacity was taken before the request was sent.
    reserved: int
    #: Jobs that the claim may return at most.
    limit: int
    #: Set if the claim blocks in the storage until there is a job.
    wait: ClaimWait | None = None
    #: None until the reply has arrived.
    reply: Reply | None = None
    #: Another claim failed while this one was in flight. That one may hold jobs, so a claim that returns
    #: few jobs does not prove that the queue is empty.
    other_failed: bool = False

    @property
    def prefetching(self) -> int:
        """Jobs that will have to wait for capacity."""
        return max(0, self.limit - self.reserved)


async def send(storage: Storage, queue: str, trip: RoundTrip) -> Reply:
    """Settle the runs of `trip`, and claim up to its limit if it has a lease. Never raises."""
    try:
        results, claim = await _send(storage, queue, trip)
    except Refused as refused:
        if not trip.settling:
            return Reply(error=refused)
        return await settle_singly(storage, queue, trip.settling)
    except (StorageError, NotRunning) as error:
        return Reply(unsettled=trip.settling, error=error)
    except Exception as error:  # noqa: BLE001 - OutcomeUnknown or a bug of a storage: the claim may have happened
        return Reply(unsettled=trip.settling, error=error, claim_unknown=trip.lease is not None)
    return Reply(settled=trip.settling, results=results, claim=claim)


async def _send(
    storage: Storage, queue: str, trip: RoundTrip
) -> tuple[Sequence[SettleResult], ClaimResult | None]:
    if trip.lease is None:
        return await storage.settle(queue, settlements(trip.settling)), None
    if trip.wait is not None:
        return (), await cast("BlockingClaims", storage).claim_blocking(
            queue, trip.lease, trip.limit, claim_id=trip.wait.claim_id, timeout=trip.wait.seconds
        )
    if not trip.settling:
        return (), await storage.claim(queue, trip.lease, trip.limit)
    both = await storage.settle_and_claim(queue, settlements(trip.settling), trip.lease, trip.limit)
    return both.settled, both.claim


async def settle_singly(storage: Storage, queue: str, runs: Sequence[Invocation]) -> Reply:
    """Settle each run with a request of its own: a batch is refused as a whole for one bad settlement."""
    results: list[SettleResult] = []
    for number, invocation in enumerate(runs):
        try:
            results += await storage.settle(queue, settlements([invocation]))
        except Refused as refused:
            results.append(SettleResult("refused", str(refused)))
        except Exception as error:  # noqa: BLE001 - any error of a storage; settling twice by fence is safe
            return Reply(settled=runs[:number], results=results, unsettled=runs[number:], error=error)
    return Reply(settled=runs, results=results)


def settlements(runs: Iterable[Invocation]) -> list[Settlement]:
    """Return the settlement of each run, as the storage takes it."""
    return [Settlement(id=run.job.id, fence=run.fence, action=run.action) for run in runs]
