"""The number of requests of a batch grows with its size, and no faster."""

from __future__ import annotations

import random

import pytest

from dibs import BatchSummary
from dibs.flow.running import evaluation
from tests.flow.driver import Driver

MEMBERS = 5_000
SEGMENTS = 5


async def test_a_batch_of_five_thousand_members_takes_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "FULL_READ", 1e9)
    driver = Driver(rng=random.Random(1))
    async with driver.storage:
        with driver.app.override_storage(driver.storage):
            driver.storage.is_evaluating = True  # counts the requests
            async with driver.app.batch(id="b") as batch:
                jobs = (driver.task.options(attributes={"number": n}).bind([]) for n in range(MEMBERS))
                assert MEMBERS == await batch.enqueue_many(jobs)
            driver.storage.is_evaluating = False
            producer = driver.storage.calls.copy()
            assert "completed" == await driver.run("b")
            calls = driver.storage.calls.copy() - producer
            summary = await batch.ticket.result(wait=0)
            driver.storage.calls.clear()
            driver.storage.is_evaluating = True
            results = [one.result async for one in batch.results()]

    assert BatchSummary(members=MEMBERS, completed=MEMBERS) == summary
    assert list(range(MEMBERS)) == results
    # One enqueue for the batch, one for its close, and one for each segment.
    assert {"enqueue": 2 + SEGMENTS, "amend": 1 + SEGMENTS, "get": 1 + SEGMENTS} == producer
    # The evaluations enqueue the members of each segment in one request, and wake the batch once.
    assert SEGMENTS == calls["enqueue"]
    assert SEGMENTS == calls["settle"]
    assert 1 == calls["finish"]
    # The seal of the batch, and the retention of each segment.
    assert 1 + SEGMENTS == calls["amend"]
    assert calls["report"] <= 6 * SEGMENTS
    assert calls["get"] < 2 * MEMBERS
    # The results: the batch, each segment twice, and 200 members in a request.
    assert driver.storage.calls.total() < MEMBERS / 100
