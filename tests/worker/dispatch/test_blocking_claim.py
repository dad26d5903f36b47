"""The claim of an idle worker that waits with the storage: what it brings, and when it is called back."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from dibs.client.app import Dibs
from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.worker.dispatch import blocking_claim
from dibs_conformance.servers import RedisServer
from tests.worker.dispatch.test_worker import serving
from tests.worker.workshop import Faulty, add, counted, faulty, put


@pytest.fixture(autouse=True)
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is parked does not come back by itself while a test runs."""
    monkeypatch.setattr(blocking_claim, "CLAIM_WAIT", 600.0)


@pytest.fixture
async def parks(redis_server: RedisServer) -> AsyncIterator[Dibs]:
    """An app whose storage parks claims, with a handler for `q`."""
    async with Dibs(f"{redis_server.url}?prefix=parks-{secrets.token_hex(4)}") as app:
        add(app, "q", _nothing, size=10)
        yield app


async def _nothing() -> None: ...


@asynccontextmanager
async def parked(app: Dibs) -> AsyncIterator[Faulty]:
    """A worker whose claim is parked."""
    async with faulty(app) as storage, serving(app):
        await until_parked(storage, 1)
        yield storage


async def until_parked(storage: Faulty, times: int) -> None:
    await storage.until(lambda: storage.calls.count("claim_blocking") >= times)


async def test_what_comes_to_an_idle_worker_is_brought_without_another_request(parks: Dibs) -> None:
    async with parked(parks) as storage:
        before = len(storage.calls)

        await put(parks, "q", "a")
        await until_parked(storage, 2)

        # Its end is told with the next claim, which finds nothing; then it parks again.
        claiming = [
            call
            for call in storage.calls[before:]
            if call in {"claim", "settle", "settle_and_claim", "claim_blocking", "wait"}
        ]
        assert ["settle_and_claim", "claim_blocking"] == claiming
    await counted(parks, "q", "completed")


async def test_more_than_it_may_bring_is_claimed(parks: Dibs) -> None:
    async with parked(parks):
        await put(parks, "q", *"abcdefghijklmnop")
        await counted(parks, "q", "completed", 16)


async def test_it_is_parked_at_the_queue_that_had_the_latest_job(parks: Dibs) -> None:
    add(parks, "r", _nothing, size=10)
    async with parked(parks) as storage:
        await put(parks, "r", "a")
        await counted(parks, "r", "completed")
        await until_parked(storage, 2)

        assert "r" == parked_at(storage)


async def test_it_is_called_back_for_another_queue(parks: Dibs) -> None:
    add(parks, "r", _nothing, size=100)
    async with parked(parks) as storage:
        [first] = [queue for verb, queue in storage.asked if verb == "claim_blocking"]
        other = "r" if first == "q" else "q"

        await put(parks, other, "a")
        await counted(parks, other, "completed")

        assert ("wake_claim", first) in storage.asked


async def test_a_queue_that_does_not_fit_beside_it_is_looked_at_once_for_each_word(parks: Dibs) -> None:
    """A look finds nothing to make room for, and from there on it takes another word to look again."""
    add(parks, "r", _nothing, size=100)
    async with parked(parks) as storage:
        for queue in ("r", "q"):
            await put(parks, queue, "a")
            await counted(parks, queue, "completed")
            await storage.until(lambda: queue == parked_at(storage))  # noqa: B023 - it is over by then
        before = looks(storage)

        await put(parks, "r", EnqueueRequest(job=NewJob(id="later", delay=3_600_000)))
        await storage.until(lambda: looks(storage) > before)
        for _ in range(100):
            await parks.storage.get("q", ["a"])

        assert before + 1 == looks(storage)


def parked_at(storage: Faulty) -> Any:
    """Where the latest claim is parked, or was."""
    return [queue for verb, queue in storage.asked if verb == "claim_blocking"][-1]


def looks(storage: Faulty) -> int:
    return storage.asked.count(("counts", ["r"]))


async def test_a_stop_calls_it_back(parks: Dibs) -> None:
    async with asyncio.timeout(60):
        async with parked(parks) as storage:
            pass
    assert 1 == storage.calls.count("wake_claim")


async def test_a_job_that_falls_due_is_called_back_for(parks: Dibs) -> None:
    """A server looks for those whose time to wait is over ten times a second only."""
    async with parked(parks) as storage:
        await put(parks, "q", EnqueueRequest(job=NewJob(id="a", delay=300, data=JobData(payload=b"[]"))))
        await counted(parks, "q", "completed")

        assert ("wake_claim", "q") in storage.asked


async def test_nothing_is_parked_while_a_job_is_in_hand(parks: Dibs) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        begun.set()
        await end.wait()

    add(parks, "q", held, size=10)
    async with parked(parks) as storage:
        await put(parks, "q", "a")
        await begun.wait()
        await put(parks, "q", "b")
        await counted(parks, "q", "active", 2)
        assert 1 == storage.calls.count("claim_blocking")

        end.set()
        await until_parked(storage, 2)


async def test_one_of_which_nothing_is_known_costs_the_lease(parks: Dibs) -> None:
    """It may have taken jobs that nobody knows: they come back with the lease (contract, promise 7)."""
    async with faulty(parks) as storage:
        storage.fail("claim_blocking", OutcomeUnknown("the connection was lost"))
        async with serving(parks):
            await until_parked(storage, 2)
            assert 2 == storage.calls.count("grant")

            await put(parks, "q", "a")
            await counted(parks, "q", "completed")
            await storage.until(lambda: "drop" in storage.calls)


async def test_one_that_cannot_be_called_back_comes_by_itself(
    parks: Dibs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_claim, "CLAIM_WAIT", 0.3)
    async with asyncio.timeout(60):
        with caplog.at_level(logging.WARNING):
            async with parked(parks) as storage:
                storage.fail("wake_claim", StorageUnavailable("not now"))

    assert "ending the blocking claim failed: not now" in caplog.text


async def test_a_storage_that_cannot_be_asked_is_left_alone_for_a_time(parks: Dibs) -> None:
    async with faulty(parks) as storage:
        for _ in range(3):
            storage.fail("claim_blocking", StorageUnavailable("not now"))
        async with serving(parks):
            await until_parked(storage, 4)
            await put(parks, "q", "a")
            await counted(parks, "q", "completed")

    assert 1 == storage.calls.count("grant")
