"""Settlements with a claim on Redis that are sent without a task; see dibs.storage.direct_settle."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from attrs import frozen
from redis.exceptions import RedisError

from dibs.errors import Refused
from dibs.model.check_arguments import check_settlements
from dibs.model.requests import Settlement
from dibs.model.results import SettleAndClaimResult
from dibs.storage.direct_settle import OnSettled
from dibs.storage.redis import keys
from dibs.storage.redis.claims import RedisClaims
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.servers import did_not_run
from dibs.storage.redis.network.wire import pack
from dibs.storage.redis.session import STEP

#: The claims that continue after an incomplete reply.
_continued: Final[set[asyncio.Task[None]]] = set()


@frozen(eq=False)
class _Sent:
    """A settle_and_claim that was sent."""

    queue: str
    batch: SettlementBatch
    lease: str
    limit: int
    on_end: OnSettled


class RedisDirectSettle(RedisClaims):
    """The settlement of one run with a claim: one write and one read of an open connection."""

    def start_settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, on_end: OnSettled
    ) -> bool:
        # The names of registered queues were checked.
        if self._servers is None or self._manual or queue not in self._registered:
            return False
        if type(lease) is not str or type(limit) is not int or limit < 1:
            return False
        try:
            check_settlements(settlements)
        except Refused:
            return False
        batch = self._batch_of(queue, settlements)
        if not self._registered.issuperset(batch.queues):
            return False
        prefixes = [self._queue_prefix(one) for one in (queue, *batch.targets)]
        declared = keys.declared_keys(prefixes, cluster=self._cluster)
        packed = pack((
            "EVALSHA", self._script("settle_and_claim").sha, len(declared), *declared,
            "", queue, len(settlements), codec.encode_lease(lease), min(limit, STEP),
            *batch.arguments, *batch.follow_ups,
        ))  # fmt: skip
        sent = _Sent(queue, batch, lease, limit, on_end)
        return self._servers.start(declared[0], packed, partial(self._end_settle_and_claim, sent))

    def _end_settle_and_claim(self, sent: _Sent, reply: Any) -> None:
        if isinstance(reply, RedisError):
            reply = None if did_not_run(reply) else translate_error(reply, self.url)
        if reply is None or isinstance(reply, Exception):
            sent.on_end(reply)
            return
        settled, claimed = reply
        try:
            claim, incomplete = self._decode(sent.queue, codec.decode_claim, claimed)
            if (incomplete or len(claim.jobs) == STEP) and len(claim.jobs) < sent.limit:
                self._continue_later(sent, reply)
                return
            result = SettleAndClaimResult(tuple(sent.batch.decode(settled)), claim)
        except Exception as error:  # noqa: BLE001 - the caller must get the error
            sent.on_end(error)
            return
        if self._waits is not None:
            self._waits.note_time(sent.queue, claim.now)
        sent.on_end(result)

    def _continue_later(self, sent: _Sent, reply: Any) -> None:
        task = asyncio.get_running_loop().create_task(self._continue(sent, *reply))
        _continued.add(task)  # the event loop keeps only weak references
        task.add_done_callback(_continued.discard)

    async def _continue(self, sent: _Sent, settled: bytes, claimed: list[Any]) -> None:
        """Claim again after a reply that is incomplete, and then end the call."""
        result: SettleAndClaimResult | Exception
        try:
            claim = await self._finish_claim(sent.queue, sent.lease, sent.limit, None, claimed)
            result = SettleAndClaimResult(tuple(sent.batch.decode(settled)), claim)
        except Exception as error:  # noqa: BLE001 - the caller must get the error
            result = error
        sent.on_end(result)
