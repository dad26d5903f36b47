"""Races in the memory storage: verbs that check a fence, a lease or a revision, and write in a later step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.model import rules
from dibs.model.job import EMPTY
from dibs.model.requests import Settlement
from dibs.model.results import FinishStatus, RenewResult, SettleAndClaimResult
from dibs.storage.indexed import claiming, reading, settling
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.records import Lease
from dibs.storage.indexed.storage import IndexedStorage
from tests.kit.mutants.planting import Patch
from tests.kit.mutants.races import fence_of, race, settle_unchecked


@race("report: a run whose fence is older stores no progress")
def a_report_checks_its_fence_then_writes(patch: Patch) -> None:
    async def report(
        self: Any,
        queue: str,
        id: str,
        fence: int,
        progress: bytes | None = None,
        memo: bytes | None = None,
        *,
        output: Any = (),
        now: int | None = None,
    ) -> Any:
        [slot] = await self._run_read(now, reading.get, queue, [id])
        if fence_of(slot) != fence:
            return "lost"
        return await self._run_step(now, report_unchecked, queue, id, progress, memo, tuple(output))

    patch.setattr(IndexedStorage, "report", report)


def report_unchecked(
    index: Index, queue: str, id: str, progress: Any, memo: Any, chunks: tuple[bytes, ...]
) -> str:
    slot = index.find_queue(queue).slots.get(id, EMPTY)
    settling.report(index, queue, id, fence_of(slot), progress, memo, chunks=chunks)
    return "reported"


@race("settle_and_claim: the fence is checked in the same step as the change")
def a_turn_checks_its_fence_then_writes(patch: Patch) -> None:
    async def settle_and_claim(
        self: Any,
        queue: str,
        settlements: Sequence[Settlement],
        lease: str,
        limit: int,
        *,
        now: int | None = None,
    ) -> Any:
        found = await self._run_read(now, reading.get, queue, [one.id for one in settlements])
        valid = [fence_of(slot) == one.fence for slot, one in zip(found, settlements, strict=True)]
        return await self._run_step(now, turn_unchecked, queue, settlements, valid, lease, limit, self.limits)

    patch.setattr(IndexedStorage, "settle_and_claim", settle_and_claim)


def turn_unchecked(  # noqa: PLR0917 - the arguments of the verb, and `valid`
    index: Index,
    queue: str,
    settlements: Sequence[Settlement],
    valid: Sequence[bool],
    lease: str,
    limit: int,
    limits: Any,
) -> SettleAndClaimResult:
    settled = settle_unchecked(index, queue, settlements, valid, limits)
    return SettleAndClaimResult(tuple(settled), claiming.claim(index, queue, lease, limit))


@race("leases: a renewal never revives a lease")
def a_renewal_checks_its_lease_then_writes(patch: Patch) -> None:
    async def renew(self: Any, queues: Sequence[str], lease: str, ttl: int, *, now: int | None = None) -> Any:
        alive = await self._run_read(now, alive_leases, queues, lease)
        return await self._run_step(now, renew_unchecked, alive, lease, ttl)

    patch.setattr(IndexedStorage, "renew", renew)


def alive_leases(index: Index, queues: Sequence[str], id: str) -> dict[str, Lease | None]:
    found = {name: index.find_queue(name).leases.get(id) for name in queues}
    return {
        name: lease if lease is not None and lease.alive(index.now) else None for name, lease in found.items()
    }


def renew_unchecked(
    index: Index, alive: dict[str, Lease | None], id: str, ttl: int
) -> dict[str, RenewResult]:
    for name, lease in alive.items():
        if lease is not None and not index.find_queue(name).leases.get(id, lease).dropped:
            index.queue(name).put_lease(id, lease)
    return claiming.renew(index, list(alive), id, ttl)


@race("finish: only the run with the revision ends")
def a_finish_checks_its_revision_then_writes(patch: Patch) -> None:
    async def finish(
        self: Any, queue: str, id: str, end: Any, revision: int, *, now: int | None = None
    ) -> Any:
        [slot] = await self._run_read(now, reading.get, queue, [id])
        decision = rules.decide_finish(slot, end, revision)
        return decision or await self._run_step(now, finish_unchecked, queue, id, end)

    patch.setattr(IndexedStorage, "finish", finish)


def finish_unchecked(index: Index, queue: str, id: str, end: Any) -> FinishStatus:
    source = index.find_queue(queue)
    slot = source.slots.get(id, EMPTY)
    if slot.current is not None and slot.current.run is not None:
        settling.end(index, source, slot, slot.current, end)
    return "done"
