"""A round trip to the storage: one request with settlements and a claim for one queue, and its reply."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from dibs.client.calls.error_info import summarize_exception
from dibs.errors import NotRunning, Refused, StorageDamaged, StorageError
from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, SettleResult
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

    @property
    def reason(self) -> str:
        """Type and message of the error for a log line; "" if the request succeeded."""
        return "" if self.error is None else summarize_exception(self.error)


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


async def send(storage: Storage, queue: str, trip: RoundTrip) -> Reply:
    """Send the request of `trip` and return the reply. Never raises: errors are part of the reply."""
    try:
        results, claim = await _call_storage(storage, queue, trip)
    except Refused as refused:
        if not trip.settling:
            return Reply(error=refused)
        return await settle_singly(storage, queue, trip.settling)
    except (StorageError, NotRunning) as error:
        # A storage may find the damaged record only when it decodes the claimed jobs.
        claim_unknown = trip.lease is not None and isinstance(error, StorageDamaged)
        return Reply(unsettled=trip.settling, error=error, claim_unknown=claim_unknown)
    except Exception as error:  # noqa: BLE001 - OutcomeUnknown, or a bug of a storage: it may have claimed
        return Reply(unsettled=trip.settling, error=error, claim_unknown=trip.lease is not None)
    return Reply(settled=trip.settling, results=results, claim=claim)


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
    return [Settlement(id=run.job.id, fence=run.fence, action=run.action) for run in runs]
