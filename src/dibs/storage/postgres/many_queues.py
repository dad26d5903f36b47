"""The verbs serve and settle_and_claim of the Postgres storage: settlements and claims in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dibs.model.requests import QueueStep, Settlement
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs.storage import checks
from dibs.storage.postgres.codec import claims, rows
from dibs.storage.postgres.codec.parameters import sendable_lease
from dibs.storage.postgres.codec.steps import StepRows, encode_steps, rows_by_step
from dibs.storage.postgres.session import MAX_LIMIT, PostgresSession

#: The longest wait of a `serve` for a lock, in ms, as text for lock_timeout. A transaction of the caller may
#: hold the lock of one id for long. The error StorageBusy says that no queue was changed, and a request for
#: each queue alone then serves the other queues.
SERVE_LOCK_MS: Final = "250"


class ManyQueuesSession(PostgresSession):
    """The verbs `serve` and `settle_and_claim`, which run all steps in one transaction."""

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> Sequence[SettleAndClaimResult]:
        checks.check_serve(steps, lease, self.limits)
        # All processes lock the queues in the same order, so that two of them cannot deadlock.
        in_order = sorted(steps, key=lambda step: step.queue)
        found = await self._run_steps(in_order, lease, now, self._lock_ms or SERVE_LOCK_MS)
        results = dict(zip((step.queue for step in in_order), found, strict=True))
        return [results[step.queue] for step in steps]

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        checks.check_settle(queue, settlements, self.limits)
        [result] = await self._run_steps([QueueStep(queue, settlements, limit)], lease, now, self._lock_ms)
        return result

    async def _run_steps(
        self, steps: Sequence[QueueStep], lease: str, now: int | None, lock_ms: str | None
    ) -> Sequence[SettleAndClaimResult]:
        """Run steps in their order, with waits of at most `lock_ms` ms for a lock; None for any time."""
        params, reasons = encode_steps(steps, MAX_LIMIT, self.limits, self._positions)
        params |= {"lease": sendable_lease(lease), "now": self._time_parameter(now)}
        tokens = [self._waits.token(step.queue) for step in steps]
        if lock_ms is None:
            rows = await self._server.fetch(self._server.queries["serve"], params, writes=True)
        else:
            rows = await self._server.write_lock_limited("serve", {**params, "lock_ms": lock_ms})
        found = rows_by_step(rows)
        return [
            self._decode_step(step, found[number], refusals, lease, token)
            for number, (step, refusals, token) in enumerate(zip(steps, reasons, tokens, strict=True), 1)
        ]

    def _decode_step(
        self, step: QueueStep, found: StepRows, reasons: Sequence[str], lease: str, token: str
    ) -> SettleAndClaimResult:
        statuses, revisions = found.settled
        settled = rows.decode_settled(statuses, revisions, reasons)
        if not step.limit:
            now = found.claimed[-1][1]
            return SettleAndClaimResult(tuple(settled), ClaimResult(now=now))
        claim = self._decode_claim(step.queue, found.claimed, lease, step.limit, token)
        return SettleAndClaimResult(tuple(settled), claim)

    def _decode_claim(
        self, queue: str, found: Sequence[Sequence[Any]], lease: str, limit: int, token: str
    ) -> ClaimResult:
        """Decode the rows of a claim, and store what its vacuum and its waits need."""
        active = len(self._positions)
        claim = self.decode(queue, claims.decode_claim, found, lease, token, self._positions)
        self._vacuum.count(len(claim.jobs) + claims.count_filed(found))
        self._starts.count(queue, len(claim.jobs), active)
        self._waits.note_claim(queue, claim, limit)
        return claim
