"""Races under limits in the memory storage: a claim checks the limits, and takes a job in a later step."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from dibs.model.results import ClaimResult
from dibs.storage.indexed import claiming
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.storage import IndexedStorage
from tests.kit.mutants.planting import Patch
from tests.kit.mutants.races import race


@race("per_key is exact")
def a_claim_counts_runs_in_a_step_of_its_own(patch: Patch) -> None:
    claim_in_two_steps(patch, per_key=None)


@race("a rate is exact")
def a_claim_reads_clocks_in_a_step_of_its_own(patch: Patch) -> None:
    claim_in_two_steps(patch, rate=None, key_rate=None)


def claim_in_two_steps(patch: Patch, **lifted: Any) -> None:
    """Patch claims of one job: the step that takes the job does not check the `lifted` limits."""
    original = IndexedStorage.claim

    async def claim(self: Any, queue: str, lease: str, limit: int, *, now: int | None = None) -> Any:
        if limit > 1 or not await self._run_read(now, may_claim, queue):
            return await original(self, queue, lease, limit, now=now)
        return await self._run_step(now, claim_unchecked, queue, lease, lifted)

    patch.setattr(IndexedStorage, "claim", claim)


def may_claim(index: Index, queue: str) -> bool:
    """Return whether the limits of a queue admit a job."""
    source = index.find_queue(queue)
    return source.settings.limits_claims and source.opens_at <= index.now and source.has_due()


def claim_unchecked(index: Index, queue: str, lease: str, lifted: dict[str, Any]) -> ClaimResult:
    source = index.find_queue(queue)
    settings = source.settings
    source._apply_settings(replace(settings, **lifted))
    answer = claiming.claim(index, queue, lease, 1)
    source._apply_settings(settings)
    for job in answer.jobs if "rate" in lifted else ():
        source.charge_start(job.data.key)
    return answer
