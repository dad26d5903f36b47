"""The batches of large writes on Redis: one script for the jobs and their packed request keys."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Layout
from typing import Final

from dibs.model.check_jobs import CheckedBatch
from dibs.model.request_columns import MEMBER_BYTES, RequestColumns
from dibs.model.results import EnqueueStatus
from dibs.storage import checks
from dibs.storage.key_sets import StoredMembers
from dibs.storage.redis.codec import jobs
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.session import RedisSession

#: Batches of a key set in one page: up to 1.6 MB.
_PAGE: Final = 100
#: The answer of enqueue_batch.lua if the number of the batch is taken.
_TAKEN: Final = -1
_HEAD: Final = Layout(">QI")


class RedisKeySets(RedisSession):
    """The methods of `dibs.storage.key_sets.KeySets`."""

    async def read_key_set(
        self, queue: str, name: str, *, after: int = 0, now: int | None = None
    ) -> StoredMembers:
        checks.check_queue(queue, within=self.limits)
        last, number, *batches = await self._run_script(
            "read_key_set", queue, now, name, after, _PAGE, repeatable=True
        )
        found = self._decode(queue, _decode_batches, name, batches)
        return StoredMembers(found, int(number), int(last) > int(number))

    async def enqueue_batch(
        self, queue: str, name: str, number: int, columns: RequestColumns, *, now: int | None = None
    ) -> Sequence[EnqueueStatus] | None:
        checks.check_enqueue(queue, (), self.limits)
        await self._register(queue, adds_jobs=True)
        requests = CheckedBatch.of(columns.requests(None), self.limits, plain=columns.is_plain)
        members, arguments = b"".join(columns.members), codec.encode_requests(requests)
        reply = await self._run_script("enqueue_batch", queue, now, name, number, members, *arguments)
        if reply == _TAKEN:
            return None
        results = self._decode(queue, codec.decode_enqueued, requests, reply)
        return [result.status for result in results]


def _decode_batches(name: str, batches: Sequence[bytes]) -> dict[bytes, EnqueueStatus]:
    found: dict[bytes, EnqueueStatus] = {}
    try:
        for batch in batches:
            found.update(_decode_batch(batch))
    except jobs.DECODE_ERRORS:
        raise jobs.UnreadableRecord("request_key", name) from None
    return found


def _decode_batch(packed: bytes) -> dict[bytes, EnqueueStatus]:
    """Return the statuses by member; include/key_set.lua has the layout."""
    _, count = _HEAD.unpack_from(packed)
    start, end = _HEAD.size, _HEAD.size + count * MEMBER_BYTES
    if len(packed) not in (end, end + count):
        raise ValueError("the batch has another size than its number of keys")
    members = [packed[at : at + MEMBER_BYTES] for at in range(start, end, MEMBER_BYTES)]
    statuses = packed[end:] or b"\1" * count
    return {
        member: codec.ENQUEUE_STATUSES[status - 1] for member, status in zip(members, statuses, strict=True)
    }
