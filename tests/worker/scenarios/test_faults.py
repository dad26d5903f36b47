"""Faults of the storage: lost replies, refusals and errors; the worker loses no job."""

from __future__ import annotations

import asyncio

import pytest

from dibs.app import Dibs
from dibs.errors import OutcomeUnknown, Refused, StorageDamaged, StorageUnavailable
from dibs.worker import run
from tests.worker.faulty_storage import FaultyStorage, faulty_storage
from tests.worker.jobs import add, event_kinds, outcome, put

LOST = OutcomeUnknown("the reply was lost")


class Counting:
    """A handler that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        return "done"


async def test_a_settlement_whose_reply_was_lost_is_repeated(app: Dibs) -> None:
    async with faulty_storage(app) as storage:
        await one_job(app, storage)
        storage.fail("settle_and_claim", LOST, after=True)
        report = await run(app, until="empty")

    assert ["completed"] == await event_kinds(app, "q", "a")
    assert (1, 0) == (report.total("completed"), report.total("lost"))


async def test_a_refused_batch_is_settled_one_by_one(app: Dibs) -> None:
    async with faulty_storage(app) as storage:
        await one_job(app, storage)
        storage.fail("settle_and_claim", Refused("one of them is bad"))
        await run(app, until="empty")

    assert "completed" == (await outcome(app, "q", "a")).kind
    assert storage.calls.count("settle_and_claim") == storage.calls.count("settle") == 1


@pytest.mark.parametrize(
    "error",
    [LOST, StorageDamaged("the record of another job in the same claim is damaged")],
    ids=lambda error: type(error).__name__,
)
async def test_a_job_whose_claim_was_lost_is_released_and_runs(app: Dibs, error: Exception) -> None:
    async with faulty_storage(app) as storage:
        handler = await one_job(app, storage)
        storage.fail("claim", error, after=True)
        await run(app, until="empty")

    assert ["released", "completed"] == await event_kinds(app, "q", "a")
    assert 1 == handler.calls
    assert 2 == storage.calls.count("grant")


async def test_a_lost_lease_is_replaced(app: Dibs) -> None:
    async with faulty_storage(app) as storage:
        await one_job(app, storage)
        real = await app.storage.claim("q", "never granted", 1)
        assert real.lost
        storage.answer("claim", real)
        await run(app, until="empty")

    assert 1 == (await outcome(app, "q", "a")).attempts
    assert 2 == storage.calls.count("grant")


async def one_job(app: Dibs, storage: FaultyStorage) -> Counting:
    handler = Counting()
    add(app, "q", handler)
    await put(app, "q", "a")
    return handler


@pytest.mark.parametrize("error", [StorageUnavailable("nobody there"), RuntimeError("a fault of its own")])
@pytest.mark.parametrize("verb", ["claim", "settle_and_claim", "renew", "reap", "counts", "wait", "settle"])
async def test_a_failed_call_is_retried(app: Dibs, verb: str, error: Exception) -> None:
    async with faulty_storage(app) as storage:
        handler = await one_job(app, storage)
        storage.fail(verb, error)
        storage.fail(verb, error)
        await run(app, until="empty", heartbeat=0.05)

    assert 1 == handler.calls
    assert ["completed"] == await event_kinds(app, "q", "a")


async def test_an_old_lease_is_dropped_after_its_known_runs_have_ended(app: Dibs) -> None:
    go, here = asyncio.Event(), asyncio.Event()

    async def handler() -> str:
        here.set()
        await go.wait()
        return "done"

    async with faulty_storage(app) as storage:
        add(app, "q", handler, size=50)
        await put(app, "q", "a")
        working = asyncio.create_task(run(app, until="empty"))
        await here.wait()
        here.clear()
        storage.fail("claim", LOST, after=True)
        await put(app, "q", "b")
        await put(app, "q", "c")
        await here.wait()
        assert "drop" not in storage.calls
        go.set()
        await working

    assert ["completed"] == await event_kinds(app, "q", "a")
    assert ["released", "completed"] == await event_kinds(app, "q", "b")
    assert 2 == storage.calls.count("drop")


class TestStart:
    """The start of a worker continues after errors that pass by themselves."""

    @pytest.mark.parametrize("verb", ["queues", "grant"])
    @pytest.mark.parametrize("error", [LOST, StorageUnavailable("LOADING the dataset in memory")], ids=repr)
    async def test_it_waits_until_the_storage_is_available(
        self, app: Dibs, verb: str, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with faulty_storage(app) as storage:
            await one_job(app, storage)
            storage.fail(verb, error, after=True)
            storage.fail(verb, error)
            report = await run(app, until="empty")

        warnings = [line for line in caplog.messages if str(error) in line]
        assert 1 == report.total("completed")
        assert 1 == len(warnings), "an equal warning is logged once a minute"

    async def test_a_stop_ends_the_wait(self, app: Dibs) -> None:
        async with faulty_storage(app) as storage:
            await one_job(app, storage)
            for _ in range(100):
                storage.fail("grant", StorageUnavailable("nobody there"))
            working = asyncio.create_task(app.work())
            await storage.until(lambda: "grant" in storage.calls)
            app.stop()
            report = await working

        assert 0 == report.total("claimed")

    async def test_an_error_that_does_not_pass_is_raised(self, app: Dibs) -> None:
        async with faulty_storage(app) as storage:
            await one_job(app, storage)
            storage.fail("grant", Refused("read only"))
            with pytest.raises(Refused, match="read only"):
                await run(app, until="empty")
