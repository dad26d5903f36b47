"""The number of requests of a batch grows with its size, and no faster."""

from __future__ import annotations

import random

import pytest

from dibs import BatchSummary
from dibs.flow.batch.segments import MAX_MEMBERS
from dibs.flow.running import evaluation
from tests.flow.driver import Driver


@pytest.mark.parametrize("members", [5_000, pytest.param(100_000, marks=pytest.mark.chaos)])
async def test_the_requests_of_a_batch_grow_with_its_size(
    monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    """Count requests: 0.52, 0.52, 0.53, 0.54 for each of 2,000, 4,000, 8,000, 70,000 members, so O(n) in all.

    Timers never fire here. The driver would make them due at once, and a process keeps 64 flows: each of 100
    segments would be read again at each turn, which real timers do once a minute.
    """
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)
    segments = members // MAX_MEMBERS
    driver = Driver(rng=random.Random(1), timers=False)
    async with driver.opened():
        driver.storage.is_evaluating = True  # counts the requests
        finish = driver.task.options(attributes={"number": -1}).bind([])
        async with driver.app.batch(id="b", on_finish=finish, on_success=finish) as batch:
            jobs = (driver.task.options(attributes={"number": n}).bind([]) for n in range(members))
            assert members == await batch.enqueue_many(jobs)
        driver.storage.is_evaluating = False
        producer = driver.storage.calls.copy()
        assert "completed" == await driver.run("b", 4 * members + 20_000)
        calls = driver.storage.calls.copy() - producer
        summary = await batch.ticket.result(wait=0)
        driver.storage.calls.clear()
        driver.storage.is_evaluating = True
        results = [one.result async for one in batch.results()]

    assert BatchSummary(members=members, completed=members) == summary
    assert list(range(members)) == results
    assert [-1, -1, *range(members)] == sorted(driver.ran)
    # One enqueue for the batch, one for its close, and one for each segment.
    assert {"enqueue": 2 + segments, "amend": 1 + segments, "get": 1 + segments} == producer
    # The evaluations enqueue the members of each segment in one request, and each callback once.
    assert segments + 2 == calls["enqueue"]
    assert segments == calls["settle"]
    assert 1 == calls["finish"]
    # The seal of the batch, and the retention of each segment.
    assert 1 + segments == calls["amend"]
    assert calls["report"] <= 6 * segments
    assert calls["get"] < 2 * members
    # The results: the batch, each segment twice, and 200 members in a request.
    assert driver.storage.calls.total() < members / 100
