"""One round trip to a queue: what ended is settled, and more is claimed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from msgspec import Struct

from dibs.errors import NotRunning, Refused, StorageError
from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, SettleResult
from dibs.storage.protocol import BlockingClaims, Storage
from dibs.worker.execution.invocation import Invocation


class Brought(Struct, frozen=True):
    """What a round trip brought back."""

    #: Runs of which the storage has heard, and what it said to the end of each.
    told: Sequence[Invocation] = ()
    answers: Sequence[SettleResult] = ()
    #: Those that have to be told again.
    untold: Sequence[Invocation] = ()
    claim: ClaimResult | None = None
    #: Why something is untold, or nothing was claimed.
    error: Exception | None = None
    #: A claim may have taken jobs nobody knows (promise 7).
    lost_track: bool = False


class Parked(Struct, frozen=True):
    """Where a claim waits until there is something to claim, and for how many seconds at most."""

    place: str
    seconds: float


class Flight(Struct):
    """One request that settles, claims, or both, from its launch until what it brought is taken in."""

    #: The runs whose end it tells.
    told: Sequence[Invocation]
    #: Under what it claims; None when it does not.
    lease: str | None
    #: For how many of the jobs room was taken before it went out.
    room: int
    #: How many jobs it may bring.
    limit: int
    #: None where it does not wait with the storage.
    parked: Parked | None = None
    #: None until it has landed.
    brought: Brought | None = None
    #: One that was in the air at the same time failed, so a claim that found little proves nothing.
    beside_a_failure: bool = False

    @property
    def ahead(self) -> int:
        """How many of the jobs will have to wait for room."""
        return max(0, self.limit - self.room)


async def travel(storage: Storage, queue: str, flight: Flight) -> Brought:
    """Settle, and with a lease claim up to the flight's limit. Never raises."""
    told = flight.told
    try:
        answers, claim = await _ask(storage, queue, flight)
    except Refused as refused:
        if not told:
            return Brought(error=refused)
        return await one_by_one(storage, queue, told)
    except (StorageError, NotRunning) as error:
        return Brought(untold=told, error=error)
    except Exception as error:  # noqa: BLE001 - OutcomeUnknown, or a fault in a storage: it may have happened
        return Brought(untold=told, error=error, lost_track=flight.lease is not None)
    return Brought(told=told, answers=answers, claim=claim)


async def _ask(storage: Storage, queue: str, flight: Flight) -> tuple[Sequence[SettleResult], ClaimResult | None]:
    told, lease, limit = flight.told, flight.lease, flight.limit
    if lease is None:
        return await storage.settle(queue, settlements(told)), None
    if flight.parked is not None:
        place, seconds = flight.parked.place, flight.parked.seconds
        return (), await cast("BlockingClaims", storage).claim_blocking(
            queue, lease, limit, claim_id=place, timeout=seconds
        )
    if not told:
        return (), await storage.claim(queue, lease, limit)
    turned = await storage.settle_and_claim(queue, settlements(told), lease, limit)
    return turned.settled, turned.claim


async def one_by_one(storage: Storage, queue: str, told: Sequence[Invocation]) -> Brought:
    """Settle singly, so that the one the batch was refused for stands alone."""
    answers: list[SettleResult] = []
    for place, run in enumerate(told):
        try:
            answers += await storage.settle(queue, settlements([run]))
        except Refused as refused:
            answers.append(SettleResult("refused", str(refused)))
        except Exception as error:  # noqa: BLE001 - as above; to settle by fence twice is safe
            return Brought(told=told[:place], answers=answers, untold=told[place:], error=error)
    return Brought(told=told, answers=answers)


def settlements(told: Iterable[Invocation]) -> list[Settlement]:
    """Return what to tell the storage."""
    return [Settlement(id=run.job.id, fence=run.fence, action=run.end) for run in told]
