"""The command of a direct enqueue of one job equals the packed command of any other enqueue."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.model.check_jobs import check_batch
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest, Reject
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


ALONE = [
    OutcomeRetention(completed=120_000),
    OutcomeRetention(completed=None, failed=0, cancelled=1),
    OutcomeRetention(keep_payload=("completed", "failed")),
    OutcomeRetention(completed=1, keep_payload=()),
]


@pytest.mark.parametrize("retention", ALONE)
def test_a_job_with_a_retention_is_packed_as_by_the_driver(
    opened: Callable[..., RedisStorage], prefix: str, retention: OutcomeRetention
) -> None:
    request = EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"\r\n", retention=retention)))
    declared = declared_keys([queue_prefix(prefix, "q")], cluster=False)
    batch = check_batch([request])

    assert codec.encode_alone(request, plain=False)
    assert (
        pack(_enqueue_command(declared, codec.encode_requests(batch), script("enqueue").sha))
        == (opened()._packed_enqueue("q", batch)[1])
    )


@pytest.mark.parametrize(
    "request_",
    [
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0], priority=1))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0], key="k"))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0], attributes={"a": b"1"}))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0], overrides=Overrides(timeout=1)))),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0]), delay=1)),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0]), run_at=1)),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0])), request_key="k"),
        EnqueueRequest(job=NewJob(id="a", data=JobData(retention=ALONE[0])), on_conflict=Reject()),
        EnqueueRequest(
            job=NewJob(id="a", data=JobData(retention=ALONE[0])), on_conflict=Reject(), want_outcome=True
        ),
        EnqueueRequest(job=NewJob(id="naïve", data=JobData(retention=ALONE[0]))),
    ],
)
def test_a_request_that_sets_more_takes_the_general_path(
    opened: Callable[..., RedisStorage], prefix: str, request_: EnqueueRequest
) -> None:
    declared = declared_keys([queue_prefix(prefix, "q")], cluster=False)
    batch = check_batch([request_])

    assert codec.encode_alone(request_, plain=False) is None
    assert (
        pack(_enqueue_command(declared, codec.encode_requests(batch), script("enqueue").sha))
        == (opened()._packed_enqueue("q", batch)[1])
    )
