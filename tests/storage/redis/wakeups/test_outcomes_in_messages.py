"""Outcomes in messages: a wait for few ids with small outcomes returns the outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from dibs.model.job import JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.redis import RedisStorage
from tests.storage.exchange import PATIENCE


async def ended(
    storage: RedisStorage, ids: list[str], result: bytes, retention: OutcomeRetention
) -> Mapping[str, Outcome]:
    """Complete ids in one step; return the outcomes that a wait for the first and the last id returns."""
    data = JobData(retention=retention)
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id, data=data)) for id in ids])
    watched = [ids[0], ids[-1]]
    # The first lease of a queue makes the secret that proves its messages.
    lease = (await storage.grant(["q"], 600_000, "worker")).lease
    since = (await storage.wait(["q"], for_="ids", ids=watched, timeout=0.01)).since
    jobs = (await storage.claim("q", lease, len(ids))).jobs
    how = Complete(result=result)
    await storage.settle(
        "q", [Settlement(id=job.id, fence=job.run.fence, action=how) for job in jobs if job.run]
    )
    wake = await storage.wait(["q"], for_="ids", ids=watched, since=since, timeout=PATIENCE)
    assert wake.woken
    return wake.outcomes


@pytest.mark.parametrize(
    "retention", [OutcomeRetention(), OutcomeRetention(completed=None, keep_payload=("completed",))]
)
async def test_a_wait_returns_a_few_small_outcomes(
    storage: RedisStorage, retention: OutcomeRetention
) -> None:
    outcomes = await ended(storage, list("abc"), b'"done"', retention)

    slots = await storage.get("q", ["a", "c"])
    assert {"a": slots[0].outcome, "c": slots[1].outcome} == dict(outcomes)


@pytest.mark.parametrize(
    ("number", "size", "retention"),
    [(9, 1, OutcomeRetention()), (1, 1100, OutcomeRetention()), (1, 1, OutcomeRetention(completed=0))],
    ids=["many", "large", "not kept"],
)
async def test_a_wait_returns_no_other_outcomes(
    storage: RedisStorage, number: int, size: int, retention: OutcomeRetention
) -> None:
    ids = [str(n) for n in range(number)]

    assert {} == dict(await ended(storage, ids, b"1" * size, retention))


async def test_a_wait_returns_no_outcome_from_before_its_token(
    opened: Callable[..., RedisStorage],
) -> None:
    async with opened() as storage:
        await ended(storage, ["a"], b"1", OutcomeRetention())
        since = (await storage.wait(["q"], for_="ids", ids=["a"], timeout=0.01)).since
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="b"))])

        wake = await storage.wait(["q"], for_="ids", ids=["a"], since=since, timeout=0.01)

    assert (False, {}) == (wake.woken, dict(wake.outcomes))
