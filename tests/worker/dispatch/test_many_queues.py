"""A worker of many queues, on storages that serve several queues with one request: the requests it sends."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from dibs.app import Dibs
from dibs.errors import OutcomeUnknown, StorageBusy, StorageDamaged, StorageUnavailable
from dibs.worker import run
from dibs.worker.dispatch import blocking_claim
from dibs_conformance.servers import PostgresServer
from tests.worker.dispatch.test_worker import serving
from tests.worker.faulty_storage import FaultyStorage, faulty_storage, replace_storage
from tests.worker.jobs import add, ids, put, wait_for_count

#: The verbs of a worker, without those of its supervisor.
VERBS = ("serve", "claim", "settle", "settle_and_claim", "claim_blocking", "claim_blocking_any", "wait")


@pytest.fixture(params=["redis", "postgres"])
async def app(request: pytest.FixtureRequest) -> AsyncIterator[Dibs]:
    name = f"many_{secrets.token_hex(4)}"
    server = request.getfixturevalue(f"{request.param}_server")
    url = f"{server.url}?{'prefix' if request.param == 'redis' else 'schema'}={name}"
    async with Dibs(url) as app:
        yield app


async def _do_nothing() -> None: ...


def add_queues(app: Dibs, number: int, **options: Any) -> list[str]:
    queues = list(ids(number))
    for queue in queues:
        add(app, queue, _do_nothing, **{"size": 1, **options})
    return queues


def requests(storage: FaultyStorage) -> Counter[str]:
    return Counter(verb for verb in storage.calls if verb in VERBS)


async def completed(app: Dibs, queues: list[str]) -> int:
    return sum(counts.completed for counts in (await app.storage.counts(queues)).values())


async def test_a_drain_of_many_queues_sends_as_large_requests_as_one_of_one_queue(app: Dibs) -> None:
    queues = add_queues(app, 50)
    for queue in queues:
        await put(app, queue, *ids(100))
    async with faulty_storage(app) as storage:
        await run(app, until="empty")
        sent = requests(storage)

    assert 5000 == await completed(app, queues)
    assert sent.total() - sent["wait"] < 200, "a request a queue and batch would be over 500"


async def test_the_first_claim_is_one_request_for_all_queues(app: Dibs) -> None:
    queues = add_queues(app, 50)
    async with faulty_storage(app) as storage, serving(app):
        await storage.until(lambda: bool(requests(storage)))

        assert [("serve", set(queues))] == [
            (verb, {step.queue for step in steps}) for verb, steps in storage.asked if verb in VERBS
        ]


@pytest.mark.long
async def test_a_job_costs_as_many_requests_as_with_one_queue(app: Dibs) -> None:
    add_queues(app, 100)
    async with faulty_storage(app) as storage, serving(app, poll=60.0):
        await put(app, "job-000", "first")
        await wait_for_count(app, "job-000", "completed")
        await asyncio.sleep(0.3)
        before = requests(storage)
        for n in range(20):
            await put(app, f"job-{n * 5:03}", "a")
            await wait_for_count(app, f"job-{n * 5:03}", "completed", 1 + (n == 0))
        sent = requests(storage) - before

    assert sent["claim"] + sent["serve"] + sent["settle"] + sent["settle_and_claim"] <= 45


@pytest.mark.long
async def test_idle_queues_share_one_wait(app: Dibs) -> None:
    add_queues(app, 200)
    async with faulty_storage(app) as storage, serving(app, poll=0.2):
        await storage.until(lambda: requests(storage)["claim_blocking_any"] + requests(storage)["wait"] > 0)
        await asyncio.sleep(1.0)
        before = requests(storage)
        await asyncio.sleep(1.0)
        sent = requests(storage) - before

    assert sent.total() <= 6, "one for each poll of 0.2 s"


@pytest.mark.long
async def test_a_thousand_queues_work(app: Dibs) -> None:
    queues = add_queues(app, 1000)
    for queue in queues[::7]:
        await put(app, queue, "a")
    async with faulty_storage(app) as storage:
        await run(app, until="empty")
        sent = requests(storage)

    assert len(queues[::7]) == await completed(app, queues)
    assert sent["serve"] < 60


@pytest.mark.parametrize(
    "error",
    [StorageBusy("locked"), StorageDamaged("one job"), OutcomeUnknown("lost"), StorageUnavailable("down")],
)
async def test_after_a_failed_request_each_queue_is_sent_alone_once(
    app: Dibs, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    queues = add_queues(app, 5)
    for queue in queues:
        await put(app, queue, *ids(300))
    async with faulty_storage(app) as storage:
        storage.fail("serve", error)
        with caplog.at_level(logging.WARNING):
            report = await run(app, until="empty")
        verbs = [(verb, first) for verb, first in storage.asked if verb in VERBS and verb != "wait"]

    assert (1500, 0) == (report.total("completed"), report.total("lost"))
    assert "serve" == verbs[0][0]
    assert set(queues) == {first for verb, first in verbs[1:6] if verb == "claim"}
    assert "serve" in [verb for verb, _ in verbs[6:]]
    assert "a request for 5 queues failed, sending a request for each" in caplog.text


class OneDamagedQueue(FaultyStorage):
    """A storage that fails for each request that claims in the queue job-001."""

    def __getattr__(self, name: str) -> Any:
        real = super().__getattr__(name)
        if name not in {"serve", "claim", "settle_and_claim", "claim_blocking", "claim_blocking_any"}:
            return real

        async def call(first: Any, *args: Any, **kwargs: Any) -> Any:
            queues = [first] if isinstance(first, str) else [getattr(one, "queue", one) for one in first]
            if "job-001" in queues:
                raise StorageUnavailable("job-001 cannot be read")
            return await real(first, *args, **kwargs)

        return call


async def test_one_queue_that_fails_does_not_stop_the_others(app: Dibs) -> None:
    queues = add_queues(app, 5)
    others = [queue for queue in queues if queue != "job-001"]
    async with replace_storage(app, OneDamagedQueue) as storage, serving(app):
        for round_ in range(3):
            for queue in others:
                await put(app, queue, f"job-{round_}")
            for queue in others:
                await wait_for_count(app, queue, "completed", round_ + 1)
        served = [{step.queue for step in steps} for verb, steps in storage.asked if verb == "serve"]

    assert set(others) >= set().union(*served)


@pytest.mark.long
async def test_a_locked_id_stops_only_its_queue(postgres_server: PostgresServer) -> None:
    """A transaction of a user may hold the lock for long."""
    schema = f"many_{secrets.token_hex(4)}"
    async with Dibs(f"{postgres_server.url}?schema={schema}") as app:
        queues = add_queues(app, 5)
        begun, end = asyncio.Event(), asyncio.Event()

        async def held() -> None:
            begun.set()
            await end.wait()

        add(app, "job-000", held, size=1)
        await put(app, "job-000", "x")
        async with serving(app), await psycopg.AsyncConnection.connect(postgres_server.url) as connection:
            await begun.wait()
            await connection.execute(f'SELECT 1 FROM "{schema}".live FOR UPDATE')
            for queue in queues[1:]:
                await put(app, queue, *ids(300))
            end.set()
            for queue in queues[1:]:
                await wait_for_count(app, queue, "completed", 300)
            assert 1 == (await app.storage.counts(["job-000"]))["job-000"].active

            await connection.rollback()
            await wait_for_count(app, "job-000", "completed")


@pytest.mark.long
async def test_a_job_of_any_queue_ends_the_blocking_claim_of_all(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not app.storage.capabilities.blocking_claim:
        pytest.skip("the storage has no blocking claims")
    monkeypatch.setattr(blocking_claim, "CLAIM_WAIT", 600.0)
    queues = add_queues(app, 30)
    async with faulty_storage(app) as storage, serving(app, poll=600.0):
        for number, queue in enumerate(queues[::6], 1):
            await storage.until(lambda: requests(storage)["claim_blocking_any"] >= number)  # noqa: B023
            await put(app, queue, "a")
            await wait_for_count(app, queue, "completed")
        sent = requests(storage)

    assert sent["claim_blocking_any"] >= 5
    assert 0 == sent["claim"]


@pytest.mark.parametrize("error", [OutcomeUnknown("lost"), StorageUnavailable("down")])
async def test_after_a_failed_blocking_claim_each_queue_claims_alone(app: Dibs, error: Exception) -> None:
    if not app.storage.capabilities.blocking_claim:
        pytest.skip("the storage has no blocking claims")
    queues = add_queues(app, 5)
    async with faulty_storage(app) as storage:
        storage.fail("claim_blocking_any", error)
        async with serving(app):
            await storage.until(lambda: requests(storage)["claim_blocking_any"] > 1)
            grants = 1 + isinstance(error, OutcomeUnknown)

            assert set(queues) == {queue for verb, queue in storage.asked if verb == "claim"}
            assert grants == storage.calls.count("grant")
            await put(app, queues[3], "a")
            await wait_for_count(app, queues[3], "completed")
