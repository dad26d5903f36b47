"""The verbs of the Redis storage that settle and claim, for one queue or for many."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from msgspec.structs import replace

from dibs.model.requests import QueueStep, Settlement
from dibs.model.results import ClaimResult, SettleAndClaimResult, SettleResult
from dibs.storage import checks
from dibs.storage.redis import keys
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.codec.steps import StepBatch, StepReply
from dibs.storage.redis.session import SMALL_STEP, STEP, RedisSession
from dibs.storage.redis.wakeups.blocking_claim import blocking_claim


class RedisClaims(RedisSession):
    """The verbs that settle and claim."""

    async def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        reply = await self._run_script("claim", queue, now, codec.encode_lease(lease), min(limit, STEP))
        return await self._finish_claim(queue, lease, limit, now, reply)

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        checks.check_claim_blocking(queue, limit, claim_id, timeout, self.limits, lease=lease)
        if self._servers is None or not self.capabilities.blocking_claim:
            return await self.claim(queue, lease, limit)
        claim = ["", codec.encode_lease(lease), min(limit, STEP)]
        declared = keys.declared_keys([self._queue_prefix(queue)], cluster=self._cluster)
        reply, pause = await blocking_claim(self._servers, self.url, declared, claim_id, timeout, claim)
        if pause:
            self._allow_blocking_claims(allowed=False)
        if 0 < pause < math.inf:
            asyncio.get_running_loop().call_later(pause, lambda: self._allow_blocking_claims(allowed=True))
        if reply is None:
            return await self.claim(queue, lease, limit)
        return await self._finish_claim(queue, lease, limit, None, reply)

    def _allow_blocking_claims(self, *, allowed: bool) -> None:
        self.capabilities = evolve(self.capabilities, blocking_claim=allowed)

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        checks.check_claim_blocking(queue, 1, claim_id, 1.0, within=self.limits)
        await self._run_script_untimed("wake_claim", queue, [claim_id])

    async def _finish_claim(
        self, queue: str, lease: str, limit: int, now: int | None, reply: list[Any]
    ) -> ClaimResult:
        """Claim again until `limit` jobs are claimed or no job is due, and return all claimed jobs.

        One script call claims at most STEP jobs. A call may also return fewer jobs because it had to skip
        many stale entries, or to look at many closed keys again; its reply is then `incomplete`.
        """
        claim, incomplete = self._decode(queue, codec.decode_claim, reply)
        may_have_more = incomplete or len(claim.jobs) == STEP
        while may_have_more and len(claim.jobs) < limit:
            step = min(limit - len(claim.jobs), STEP)
            reply = await self._run_script("claim", queue, now, codec.encode_lease(lease), step)
            more, incomplete = self._decode(queue, codec.decode_claim, reply)
            may_have_more = incomplete or len(more.jobs) == step
            claim = replace(more, jobs=claim.jobs + more.jobs, lost=more.lost and not claim.jobs)
        if self._waits is not None:
            self._waits.note_time(queue, claim.now)
        return claim

    async def settle(
        self, queue: str, settlements: Sequence[Settlement], *, now: int | None = None
    ) -> list[SettleResult]:
        checks.check_settle(queue, settlements, self.limits)
        if not settlements:
            self._time_argument(now)
            return []
        batch = await self._encode_settlements(queue, settlements)
        reply = await self._run_script(
            "settle", queue, now, queue, len(settlements), *batch.arguments, *batch.follow_ups,
            more_queues=batch.targets,
        )  # fmt: skip
        return batch.decode(reply)

    async def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, *, now: int | None = None
    ) -> SettleAndClaimResult:
        checks.check_claim(queue, lease, limit, self.limits)
        checks.check_settle(queue, settlements, self.limits)
        batch = await self._encode_settlements(queue, settlements)
        settled, claimed = await self._run_script(
            "settle_and_claim", queue, now, queue, len(settlements), codec.encode_lease(lease),
            min(limit, STEP), *batch.arguments, *batch.follow_ups, more_queues=batch.targets,
        )  # fmt: skip
        claim = await self._finish_claim(queue, lease, limit, now, claimed)
        return SettleAndClaimResult(tuple(batch.decode(settled)), claim)

    # -- many queues ---------------------------------------------------------------------------------

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> list[SettleAndClaimResult]:
        checks.check_serve(steps, lease, self.limits)
        batches = [self._batch_of(step.queue, step.settlements) for step in steps]
        await self._register(*{queue: None for batch in batches for queue in batch.queues})
        results: list[SettleAndClaimResult] = []
        while len(results) < len(steps):
            first = len(results)
            part = StepBatch()
            for step, batch in zip(steps[first : first + SMALL_STEP], batches[first:], strict=False):
                part.add(step.queue, batch, min(step.limit, STEP))
            # The script returns fewer replies than steps if it stopped after many runs.
            replies = await self._run_serve(part, lease, now)
            for step, batch, reply in zip(steps[first:], batches[first:], replies, strict=False):
                results.append(await self._step_result(step, batch, reply, lease, now))
        return results

    async def _run_serve(self, part: StepBatch, lease: str, now: int | None) -> Sequence[StepReply]:
        first, *others = part.queues
        arguments = [codec.encode_lease(lease), part.count, *part.arguments]
        replies: Sequence[StepReply] = await self._run_script(
            "serve", first, now, *arguments, more_queues=others
        )
        return replies

    async def _step_result(
        self, step: QueueStep, batch: SettlementBatch, reply: StepReply, lease: str, now: int | None
    ) -> SettleAndClaimResult:
        at, settled, claimed = reply
        claim = ClaimResult(now=int(at))
        if step.limit:
            claim = await self._finish_claim(step.queue, lease, step.limit, now, claimed)
        return SettleAndClaimResult(tuple(batch.decode(settled)), claim)
