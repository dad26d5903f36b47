"""The verbs of the Redis storage that settle and claim, for one queue or for many."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from attrs import evolve
from msgspec.structs import replace

from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, SettleAndClaimResult, SettleResult
from dibs.storage import checks
from dibs.storage.redis import keys
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.network.servers import Servers
from dibs.storage.redis.session import STEP, RedisSession
from dibs.storage.redis.wakeups.blocking_claim import BlockingRequest, blocking_claim


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
        prefix = self._queue_prefix(queue)
        request = BlockingRequest(
            (prefix + "parked", f"{prefix}parked:{claim_id}"), timeout, "claim",
            keys.declared_keys([prefix], cluster=self._cluster),
            ["", codec.encode_lease(lease), min(limit, STEP)],
        )  # fmt: skip
        reply = await self._send_blocking(self._servers, request)
        if reply is None:
            return await self.claim(queue, lease, limit)
        return await self._finish_claim(queue, lease, limit, None, reply)

    async def _send_blocking(self, servers: Servers, request: BlockingRequest) -> list[Any] | None:
        """Send a blocking claim and return its reply; None if the server refused it."""
        reply, pause = await blocking_claim(servers, self.url, request)
        if pause:
            self._allow_blocking_claims(allowed=False)
        if 0 < pause < math.inf:
            asyncio.get_running_loop().call_later(pause, lambda: self._allow_blocking_claims(allowed=True))
        return reply

    def _allow_blocking_claims(self, *, allowed: bool) -> None:
        self.capabilities = evolve(self.capabilities, blocking_claim=allowed)

    async def wake_claim(self, queue: str, claim_id: str) -> None:
        checks.check_claim_blocking(queue, 1, claim_id, 1.0, within=self.limits)
        of_many = [] if self._cluster else [keys.claim_key(self._prefix, claim_id)]
        await self._run_script_untimed("wake_claim", queue, [claim_id, *of_many])

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
