"""The blocking claim of an idle worker: the jobs that it returns, and the events that end it early."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import evolve

from dibs.app import Dibs
from dibs.errors import OutcomeUnknown, StorageUnavailable
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.worker.dispatch import blocking_claim
from dibs_conformance.servers import RedisServer
from tests.worker.dispatch.test_worker import serving
from tests.worker.faulty_storage import FaultyStorage, faulty_storage
from tests.worker.jobs import add, put, wait_for_count


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the timeout of a blocking claim longer than a test."""
    monkeypatch.setattr(blocking_claim, "CLAIM_WAIT", 600.0)


@pytest.fixture
async def app(redis_server: RedisServer) -> AsyncIterator[Dibs]:
    """An app with a storage that has blocking claims, and a handler for `q`."""
    async with Dibs(f"{redis_server.url}?prefix=parks-{secrets.token_hex(4)}") as app:
        add(app, "q", _do_nothing, size=10)
        yield app


async def _do_nothing() -> None: ...


@asynccontextmanager
async def waiting_claim(app: Dibs, *, many_queues: bool = True) -> AsyncIterator[FaultyStorage]:
    """Run a worker until its blocking claim is in flight, then give the storage to the test."""
    async with faulty_storage(app) as storage:
        storage.capabilities = evolve(app.storage.capabilities, many_queues=many_queues)
        async with serving(app):
            await until_sent(storage, 1)
            yield storage


async def until_sent(storage: FaultyStorage, times: int) -> None:
    await storage.until(lambda: len(blocking_claims(storage)) >= times)


def blocking_claims(storage: FaultyStorage) -> list[str]:
    return [call for call in storage.calls if call in {"claim_blocking", "claim_blocking_any"}]


async def test_a_blocking_claim_returns_a_new_job_without_another_request(app: Dibs) -> None:
    async with waiting_claim(app) as storage:
        before = len(storage.calls)

        await put(app, "q", "a")
        await until_sent(storage, 2)

        # The next claim carries the settlement and returns no job; then the worker sends a blocking claim.
        claiming = [
            call
            for call in storage.calls[before:]
            if call in {"claim", "settle", "settle_and_claim", "claim_blocking", "wait"}
        ]
        assert ["settle_and_claim", "claim_blocking"] == claiming
    await wait_for_count(app, "q", "completed")


async def test_more_jobs_than_it_returns_are_claimed(app: Dibs) -> None:
    async with waiting_claim(app):
        await put(app, "q", *"abcdefghijklmnop")
        await wait_for_count(app, "q", "completed", 16)


async def test_it_waits_for_the_queue_that_had_the_latest_job(app: Dibs) -> None:
    add(app, "r", _do_nothing, size=10)
    async with waiting_claim(app, many_queues=False) as storage:
        await put(app, "r", "a")
        await wait_for_count(app, "r", "completed")
        await until_sent(storage, 2)

        assert "r" == latest_queue(storage)


async def test_it_ends_for_a_job_of_another_queue(app: Dibs) -> None:
    add(app, "r", _do_nothing, size=100)
    async with waiting_claim(app, many_queues=False) as storage:
        [first] = [queue for verb, queue in storage.asked if verb == "claim_blocking"]
        other = "r" if first == "q" else "q"

        await put(app, other, "a")
        await wait_for_count(app, other, "completed")

        assert ("wake_claim", first) in storage.asked


async def test_a_queue_that_does_not_fit_is_counted_once_for_each_wake_up(app: Dibs) -> None:
    """A count that finds no due job is followed by another only after another wake-up."""
    add(app, "r", _do_nothing, size=100)
    async with waiting_claim(app, many_queues=False) as storage:
        for queue in ("r", "q"):
            await put(app, queue, "a")
            await wait_for_count(app, queue, "completed")
            await storage.until(lambda: queue == latest_queue(storage))  # noqa: B023 - it is over by then
        before = counts_of_r(storage)

        await put(app, "r", EnqueueRequest(job=NewJob(id="later", delay=3_600_000)))
        await storage.until(lambda: counts_of_r(storage) > before)
        for _ in range(100):
            await app.storage.get("q", ["a"])

        assert before + 1 == counts_of_r(storage)


def latest_queue(storage: FaultyStorage) -> Any:
    """Return the queue of the latest blocking claim."""
    return [queue for verb, queue in storage.asked if verb == "claim_blocking"][-1]


def counts_of_r(storage: FaultyStorage) -> int:
    return storage.asked.count(("counts", ["r"]))


async def test_a_stop_ends_it(app: Dibs) -> None:
    async with asyncio.timeout(60):
        async with waiting_claim(app) as storage:
            pass
    assert 1 == storage.calls.count("wake_claim")


async def test_it_ends_for_a_scheduled_job_that_falls_due(app: Dibs) -> None:
    """The timeout of the claim would be late: a server checks timeouts only ten times a second."""
    async with waiting_claim(app) as storage:
        await put(app, "q", EnqueueRequest(job=NewJob(id="a", delay=300, data=JobData(payload=b"[]"))))
        await wait_for_count(app, "q", "completed")

        assert ("wake_claim", "q") in storage.asked


async def test_no_blocking_claim_is_sent_while_a_job_runs(app: Dibs) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    async def held() -> None:
        begun.set()
        await end.wait()

    add(app, "q", held, size=10)
    async with waiting_claim(app) as storage:
        await put(app, "q", "a")
        await begun.wait()
        await put(app, "q", "b")
        await wait_for_count(app, "q", "active", 2)
        assert 1 == storage.calls.count("claim_blocking")

        end.set()
        await until_sent(storage, 2)


async def test_a_lost_reply_costs_the_lease(app: Dibs) -> None:
    """The claim may have taken jobs; they are due again when the lease ends (contract, promise 7)."""
    async with faulty_storage(app) as storage:
        storage.fail("claim_blocking", OutcomeUnknown("the connection was lost"))
        async with serving(app):
            await until_sent(storage, 2)
            assert 2 == storage.calls.count("grant")

            await put(app, "q", "a")
            await wait_for_count(app, "q", "completed")
            await storage.until(lambda: "drop" in storage.calls)


async def test_a_claim_that_cannot_be_ended_early_ends_at_its_timeout(
    app: Dibs, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_claim, "CLAIM_WAIT", 0.3)
    async with asyncio.timeout(60):
        with caplog.at_level(logging.WARNING):
            async with waiting_claim(app) as storage:
                storage.fail("wake_claim", StorageUnavailable("not now"))

    assert "ending the blocking claim failed: not now" in caplog.text


async def test_requests_pause_after_errors_of_the_storage(app: Dibs) -> None:
    async with faulty_storage(app) as storage:
        for _ in range(3):
            storage.fail("claim_blocking", StorageUnavailable("not now"))
        async with serving(app):
            await until_sent(storage, 4)
            await put(app, "q", "a")
            await wait_for_count(app, "q", "completed")

    assert 1 == storage.calls.count("grant")
