"""The verbs of a storage with the capability `many_queues`, as a Protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from dibs.model.requests import QueueStep
from dibs.model.results import ClaimResult, SettleAndClaimResult


class ManyQueues(Protocol):
    """The verbs of a storage with the capability `many_queues`: one round trip for several queues."""

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> Sequence[SettleAndClaimResult]:
        """Settle and claim in 1 to 1,000 queues. Return one result per step, in the order of the steps.

        Each step is a `settle_and_claim` of its queue, with the same atomic steps and results. A step with
        `limit=0` claims no job, and its claim result has only `now`. A queue occurs in one step. An error
        may come after some steps were applied, as with a lost reply.
        """
        ...

    async def claim_blocking_any(
        self, queues: Sequence[str], lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> Mapping[str, ClaimResult]:
        """Claim up to `limit` jobs in all when a job may be due in any of 1 to 1,000 queues.

        Only a storage with the capability `blocking_claim` has this verb. It is a `claim_blocking` of all
        the queues: a change that would release a blocking claim of one queue releases this one.
        `wake_claim` with any of the queues ends it. The result has the queues in which it claimed, each with
        the result of a `claim` at that moment.
        """
        ...
