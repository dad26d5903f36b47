"""The verbs of the Redis storage for many queues in one request (dibs.storage.many_queues)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redis.exceptions import RedisError

from dibs.errors import OutcomeUnknown, Refused, StorageError
from dibs.model.requests import QueueStep
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs.storage import checks
from dibs.storage.redis import keys
from dibs.storage.redis.claims import RedisClaims
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.codec.steps import StepBatch, StepReply
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.session import SMALL_STEP, STEP
from dibs.storage.redis.wakeups.blocking_claim import BlockingRequest
from dibs.storage.redis.wakeups.queue_groups import MEMBERSHIP, released_list


class RedisManyQueues(RedisClaims):
    """The verbs for many queues. A cluster has none of them: all keys of a script must be on one server."""

    async def serve(
        self, steps: Sequence[QueueStep], lease: str, *, now: int | None = None
    ) -> list[SettleAndClaimResult]:
        checks.check_serve(steps, lease, self.limits)
        self._check_single_server()
        batches = [self._batch_of(step.queue, step.settlements) for step in steps]
        await self._register(*{queue: None for batch in batches for queue in batch.queues})
        replies: list[StepReply] = []
        try:
            while len(replies) < len(steps):
                replies += await self._run_serve(steps[len(replies) :], batches[len(replies) :], lease, now)
            return [
                await self._step_result(step, batch, reply, lease, now)
                for step, batch, reply in zip(steps, batches, replies, strict=True)
            ]
        except StorageError as error:
            if not replies or len(steps) == 1:
                raise
            raise OutcomeUnknown(f"a request for {len(steps)} queues ended early: {error}") from error

    async def _run_serve(
        self, steps: Sequence[QueueStep], batches: Sequence[SettlementBatch], lease: str, now: int | None
    ) -> list[StepReply]:
        """Run the script for the first steps, and return their replies. It stops early after many runs."""
        part = StepBatch()
        for step, batch in zip(steps[:SMALL_STEP], batches, strict=False):
            part.add(step.queue, batch, min(step.limit, STEP))
        first, *others = part.queues
        arguments = [codec.encode_lease(lease), part.count, *part.arguments]
        replies: list[Any] = await self._run_script("serve", first, now, *arguments, more_queues=others)
        if isinstance(replies[-1], RedisError):
            error = translate_error(replies[-1], self.url)
            raise OutcomeUnknown(f"a request for {len(steps)} queues ended early: {error}") from error
        return replies

    async def _step_result(
        self, step: QueueStep, batch: SettlementBatch, reply: StepReply, lease: str, now: int | None
    ) -> SettleAndClaimResult:
        at, settled, claimed = reply
        claim = ClaimResult(now=int(at))
        if step.limit:
            claim = await self._finish_claim(step.queue, lease, step.limit, now, claimed)
        return SettleAndClaimResult(tuple(batch.decode(settled)), claim)

    async def claim_blocking_any(
        self, queues: Sequence[str], lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> Mapping[str, ClaimResult]:
        checks.check_claim_blocking_any(queues, limit, claim_id, timeout, self.limits, lease=lease)
        self._check_single_server()
        by_prefix = {self._queue_prefix(queue): queue for queue in queues}
        group = self._groups.key_of(by_prefix)
        if self._servers is not None and self.capabilities.blocking_claim:
            await self._join(group, queues)
            request = BlockingRequest(
                (released_list(group), keys.claim_key(self._prefix, claim_id)), timeout, "claim_any",
                [group], ["", codec.encode_lease(lease), min(limit, STEP)],
            )  # fmt: skip
            reply = await self._send_blocking(self._servers, request)
            if reply is not None and reply[0]:
                return await self._finish_claims(by_prefix, lease, limit, reply[1:])
        return await self._claim_in_all(group, by_prefix, lease, limit)

    async def _join(self, group: str, queues: Sequence[str]) -> None:
        """Make the queues members of the group, unless this session did it less than REJOIN seconds ago."""
        if not self._groups.must_join(group):
            return
        for first in range(0, len(queues), SMALL_STEP):
            queue, *others = queues[first : first + SMALL_STEP]
            await self._run_script(
                "join_group", queue, None, group, round(MEMBERSHIP * 1000), more_queues=others
            )
        self._groups.note_joined(group)

    async def _claim_in_all(
        self, group: str, by_prefix: Mapping[str, str], lease: str, limit: int
    ) -> dict[str, ClaimResult]:
        """Claim in all queues without waiting."""
        claims: dict[str, ClaimResult] = {}
        prefixes, left = list(by_prefix), limit
        for first in range(0, len(prefixes), SMALL_STEP):
            declared = [group, *prefixes[first : first + SMALL_STEP]]
            reply = await self._run_with_keys(
                "claim_any", declared, None, codec.encode_lease(lease), min(left, STEP)
            )
            claims.update(await self._finish_claims(by_prefix, lease, left, reply[1:]))
            left = limit - sum(len(claim.jobs) for claim in claims.values())
            if left == 0:
                break
        return claims

    async def _finish_claims(
        self, by_prefix: Mapping[str, str], lease: str, limit: int, pairs: Sequence[Any]
    ) -> dict[str, ClaimResult]:
        """Return the claims by queue. Complete those that the script ended early, up to `limit` in all."""
        replies = {
            by_prefix[prefix.decode()]: reply for prefix, reply in zip(pairs[::2], pairs[1::2], strict=True)
        }
        left = limit - sum(len(reply[4]) // 2 for reply in replies.values())
        claims: dict[str, ClaimResult] = {}
        for queue, reply in replies.items():
            claimed = len(reply[4]) // 2
            claims[queue] = await self._finish_claim(queue, lease, claimed + left, None, reply)
            left -= len(claims[queue].jobs) - claimed
        return claims

    def _check_single_server(self) -> None:
        if self._cluster:
            raise Refused(f"{self.url} is a cluster: it has no many_queues, so send a request for each queue")
