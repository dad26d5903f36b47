"""The number of requests per job, counted because an extra request breaks no other test."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.model.results import EnqueueResult
from dibs.storage.redis import RedisStorage
from dibs.storage.redis.codec import requests
from dibs.storage.redis.network.connections import RedisConnections
from dibs_conformance.servers import RedisServer
from tests.storage.exchange import begun, counted, exchange
from tests.storage.redis.servers import code_of


async def test_a_job_costs_one_script_for_each_verb_and_none_for_its_waits(
    opened: Callable[..., RedisStorage], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(poll=60.0) as storage:
        lease, token = await begun(storage)
        token = await exchange(storage, lease, token, "warm")
        with counted(monkeypatch, RedisConnections, "call") as calls:
            for number in range(5):
                token = await exchange(storage, lease, token, f"job-{number}")

        sent = [call["words"][:2] for call in calls]
        verbs = [code_of(storage, name) for name in ("enqueue", "claim", "serve", "get")]
        assert verbs * 5 == sent


async def test_a_batch_costs_as_many_requests_as_a_single_job(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = (await storage.grant(["q"], 600_000, "worker")).lease
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="warm"))])
    (warm,) = (await storage.claim("q", lease, 1)).jobs
    await storage.settle(
        "q", [Settlement(id="warm", fence=warm.run.fence if warm.run else 0, action=Complete())]
    )
    with counted(monkeypatch, RedisConnections, "call") as calls:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{n}")) for n in range(1000)])
        jobs = (await storage.claim("q", lease, 1000)).jobs
        ends = [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]
        await storage.settle("q", ends)

    assert (1000, 3) == (len(ends), len(calls))


async def test_new_jobs_are_answered_with_one_number(
    storage: RedisStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis 6.2 sends each table in a reply with a system call of its own."""
    replies: list[Any] = []
    decode = requests.decode_enqueued

    def noted(sent: Sequence[EnqueueRequest], reply: int | list[Any]) -> list[EnqueueResult]:
        replies.append(reply)
        return decode(sent, reply)

    monkeypatch.setattr(requests, "decode_enqueued", noted)
    one = await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="one"))])
    more = await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=f"{n}")) for n in range(3)])

    assert [one[0].revision, more[0].revision] == replies
    assert [more[0].revision + n for n in range(3)] == [result.revision for result in more]


async def test_a_cancel_runs_the_same_commands_behind_any_backlog(
    storage: RedisStorage, redis_server: RedisServer
) -> None:
    """No list is searched for the id, also not for the last one of the queue."""

    def ran() -> Counter[str]:
        lines = redis_server.execute("INFO", "commandstats").splitlines()
        return Counter(
            {line.partition(":")[0]: int(re.split("[=,]", line)[1]) for line in lines if "=" in line}
        )

    needed = []
    await storage.cancel("q", ["warm"])
    for backlog in (3, 1000, 990):
        ids = [f"{backlog}-{number}" for number in range(backlog)]
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ids])
        before = ran()
        assert ["cancelled"] == await storage.cancel("q", ids[-1:])
        needed.append(ran() - before)

    assert needed[0] == needed[1] == needed[2]
    assert set() == {"cmdstat_lrem", "cmdstat_lpos", "cmdstat_lrange", "cmdstat_zrange"} & needed[0].keys()
