"""The verb serve of the Postgres storage: the settlements and claims of several queues in one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dibs.model.requests import QueueStep
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
    """The verb `serve`, which runs all steps in one transaction."""

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> Sequence[SettleAndClaimResult]:
        checks.check_serve(steps, lease, self.limits)
        # All processes lock the queues in the same order, so that two of them cannot deadlock.
        in_order = sorted(steps, key=lambda step: step.queue)
        params, reasons = encode_steps(in_order, MAX_LIMIT, self.limits, self._positions)
        params |= {
            "lease": sendable_lease(lease),
            "now": self._time_parameter(now),
            "lock_ms": self._lock_ms or SERVE_LOCK_MS,
        }
        tokens = [self._waits.token(step.queue) for step in in_order]
        found = rows_by_step(await self._server.write_lock_limited("serve", params))
        results = {
            step.queue: self._decode_step(step, found[number], refusals, lease, token)
            for number, (step, refusals, token) in enumerate(zip(in_order, reasons, tokens, strict=True), 1)
        }
        return [results[step.queue] for step in steps]

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
        claim = self.decode(queue, claims.decode_claim, found, lease, token, self._positions)
        self._vacuum.count(len(claim.jobs) + claims.count_filed(found))
        self._starts.count(queue, len(claim.jobs))
        self._waits.note_claim(queue, claim, limit)
        return claim
