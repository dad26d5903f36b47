"""Waits share one read of the queues' retentions, on every storage."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, Queue, StorageUnavailable, WaitTimeout
from dibs.client.connection.coalesced_calls import QueueRetentions
from tests.client.verb_counts import counted


async def test_waits_for_many_queues_read_the_settings_once(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [any_app.queue(f"{any_queue.name}-{n}") for n in range(20)]
    tickets = [await queue.enqueue(n) for queue in queues for n in range(5)]
    calls = counted(any_app.storage, monkeypatch)
    ends = await asyncio.gather(*(ticket.result(0.01) for ticket in tickets), return_exceptions=True)

    assert {WaitTimeout} == {type(end) for end in ends}
    assert 1 == calls["queues"]


async def test_a_client_sees_the_retention_that_it_configured(any_queue: Queue) -> None:
    client = any_queue._client
    await any_queue.configure(retention=5)
    before = await client.retention()
    await any_queue.configure(retention=7)

    assert (5000, 7000) == (before.completed, (await client.retention()).completed)


async def test_a_failed_read_is_repeated_by_the_next_caller(
    any_app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable() -> None:
        raise StorageUnavailable

    retentions = QueueRetentions(any_app.storage)
    with monkeypatch.context() as patch:
        patch.setattr(any_app.storage, "queues", unavailable)
        with pytest.raises(StorageUnavailable):
            await retentions.get("q")

    assert await retentions.get("q") == await any_app.queue("q")._client.retention()
