"""Enqueues on Redis that are sent without a task; see dibs.storage.direct_enqueue."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from redis.exceptions import RedisError

from dibs.model.check_jobs import CheckedBatch
from dibs.model.results import EnqueueResult
from dibs.storage.direct_enqueue import OnEnd
from dibs.storage.redis import keys
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.servers import did_not_run
from dibs.storage.redis.network.wire import pack
from dibs.storage.redis.session import RedisSession


class RedisDirectEnqueue(RedisSession):
    """The enqueues that take one write and one read of an open connection."""

    def start_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd) -> bool:
        if self._servers is None or not self._is_plain_step(queue):
            return False
        key, packed = self._packed_enqueue(queue, requests)
        return self._servers.start(key, packed, partial(self._end_enqueue, queue, requests, on_end))

    def enqueue_blocking(
        self, queue: str, requests: CheckedBatch, seconds: float | None = None
    ) -> Sequence[EnqueueResult] | None:
        servers = self._servers
        if servers is None or servers.for_threads is None or not self._is_plain_step(queue):
            return None
        reply = servers.for_threads.call(self._packed_enqueue(queue, requests)[1], seconds)
        result = None if reply is None else self._read_enqueue_reply(queue, requests, reply)
        if isinstance(result, Exception):
            raise result
        return result

    def prepare_blocking(self) -> None:
        if self._servers is not None and self._servers.for_threads is not None:
            self._servers.for_threads.open_one()

    def _is_plain_step(self, queue: str) -> bool:
        """Return False for a manual clock, whose times are compared, and for the first use of a queue."""
        return not self._manual and queue in self._registered

    def _packed_enqueue(self, queue: str, requests: CheckedBatch) -> tuple[str, bytes]:
        """Return a key of the queue, and the packed command of an enqueue."""
        declared = keys.declared_keys([self._queue_prefix(queue)], cluster=self._cluster)
        sha, arguments = self._script("enqueue").sha, codec.encode_requests(requests)
        return declared[0], pack(("EVALSHA", sha, len(declared), *declared, "", *arguments))

    def _end_enqueue(self, queue: str, requests: CheckedBatch, on_end: OnEnd, reply: Any) -> None:
        on_end(self._read_enqueue_reply(queue, requests, reply))

    def _read_enqueue_reply(
        self, queue: str, requests: CheckedBatch, reply: Any
    ) -> Sequence[EnqueueResult] | Exception | None:
        """Return the results or the error of an enqueue; None if it surely did not run."""
        if isinstance(reply, RedisError):
            return None if did_not_run(reply) else translate_error(reply, self.url)
        if isinstance(reply, Exception):
            return reply
        try:
            return self._decode(queue, codec.decode_enqueued, requests, reply)
        except Exception as error:  # noqa: BLE001 - the caller must get the error
            return error
