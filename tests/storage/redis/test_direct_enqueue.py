"""The command of a direct enqueue of one plain job equals the packed command of any other enqueue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.model.check_jobs import check_batch
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.codec import requests as codec
from dibs.storage.redis.direct_enqueue import _enqueue_command
from dibs.storage.redis.keys import declared_keys, queue_prefix
from dibs.storage.redis.network.scripts import script
from dibs.storage.redis.network.wire import pack


@pytest.mark.parametrize("queue", ["q", "a:b", "naïve"])
@pytest.mark.parametrize("payload", [b"", b"1", b"\r\n$0\r\n\x00\xff", b"x" * 100_000])
def test_a_plain_job_is_packed_as_by_the_driver(
    opened: Callable[..., RedisStorage], prefix: str, queue: str, payload: bytes
) -> None:
    batch = check_batch([EnqueueRequest(job=NewJob(id="a" * 512, data=JobData(payload=payload)))])
    declared = declared_keys([queue_prefix(prefix, queue)], cluster=False)
    key, packed = opened()._packed_enqueue(queue, batch)

    assert batch.plain
    assert declared[0] == key
    assert pack(_enqueue_command(declared, codec.encode_requests(batch), script("enqueue").sha)) == packed


def test_an_id_that_is_not_ascii_takes_the_general_path(
    opened: Callable[..., RedisStorage], prefix: str
) -> None:
    batch = check_batch([EnqueueRequest(job=NewJob(id="naïve", data=JobData(payload=b"1")))])

    assert not batch.plain
    assert "naïve".encode() in opened()._packed_enqueue("q", batch)[1]
