"""A rehearsal runs the jobs of an application as a worker does, and restores its storage afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dibs import (
    ConfigurationError,
    Dibs,
    JobCancelled,
    JobFailed,
    NotRunning,
    Refused,
    WaitTimeout,
)
from dibs.testing import Rehearsal, using
from tests.testing import service
from tests.testing.service import Mail, app, done, runs_done

#: The start of tests that move the clock. From the real time, a tick of `refresh` could be due at any moment.
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


# -- runs ----------------------------------------------------------------------------------------------


async def test_jobs_run_only_when_the_test_asks() -> None:
    async with using(app) as rehearsal:
        ticket = await service.plain.enqueue(1)
        before = (await ticket.status()).state
        report = await rehearsal.run_due()

        assert "waiting" == before
        assert "1" == await ticket.result(wait=0)
        assert {"plain": 1} == {name: queue.completed for name, queue in report.queues.items()}


async def test_payloads_and_results_travel_as_in_production() -> None:
    mail = Mail("ada@example.org", NOON)
    async with using(app) as rehearsal:
        ticket = await service.send.enqueue(mail)
        await rehearsal.run_due()

        assert mail == await ticket.result(wait=0)
        assert await ticket.result(wait=0) is not mail
        with pytest.raises(Refused):
            await service.send.enqueue(object())  # type: ignore[arg-type]


async def test_retries_pass_at_once_and_end_in_the_failure_handler() -> None:
    async with using(app, start=NOON) as rehearsal:
        ticket = await service.send.enqueue(Mail("nobody", NOON))
        report = await rehearsal.run_until_empty()

        assert ["gave up after 3"] == runs_done()[3:]
        assert NOON + timedelta(seconds=60) == rehearsal.now
        assert (2, 1) == (report.queue("send").retried, report.queue("send").failed)
        with pytest.raises(JobFailed, match="nobody"):
            await ticket.result(wait=0)


async def test_jobs_that_a_handler_enqueues_run() -> None:
    async with using(app) as rehearsal:
        await service.chain.enqueue(3)
        await rehearsal.run_due()

    assert ["chain 3", "chain 2", "chain 1", "chain 0"] == runs_done()


async def test_a_handler_may_wait_for_another_job() -> None:
    async with using(app) as rehearsal:
        ticket = await service.asks.enqueue(7)
        await rehearsal.run_due()

        assert "answer 7" == await ticket.result(wait=0)


async def test_the_lifespan_surrounds_the_runs() -> None:
    async with using(app) as rehearsal:
        await service.plain.enqueue(1)
        await rehearsal.run_due()

    assert ["opened", "plain 1 with a pool", "closed"] == done


async def test_a_handler_that_wants_a_process_runs_in_this_one() -> None:
    async with using(app) as rehearsal:
        ticket = await service.isolated.enqueue()
        await rehearsal.run_due()

        assert "here" == await ticket.result(wait=0)
    assert ["isolated"] == runs_done()


async def test_a_job_that_enqueues_itself_exceeds_max_runs() -> None:
    async with using(app, start=NOON) as rehearsal:
        await service.endless.enqueue()

        with pytest.raises(WaitTimeout, match="endless"):
            await rehearsal.run_until_empty(max_runs=50)


async def test_a_requested_cancellation_stops_the_run() -> None:
    async with using(app) as rehearsal:
        ticket = await service.patient.enqueue()
        runs = asyncio.create_task(rehearsal.run_due())
        await asyncio.wait_for(service.begun.get(), 5)
        await ticket.cancel(running=True)
        await runs

        with pytest.raises(JobCancelled):
            await ticket.result(wait=0)


async def test_interrupted_runs_are_released() -> None:
    async with using(app) as rehearsal:
        ticket = await service.patient.enqueue()
        runs = asyncio.create_task(rehearsal.run_due())
        await asyncio.wait_for(service.begun.get(), 5)
        runs.cancel()
        with pytest.raises(asyncio.CancelledError):
            await runs

        assert ("waiting", 0) == ((await ticket.status()).state, (await ticket.status()).attempts)


async def test_a_run_that_takes_too_long_ends_as_in_production() -> None:
    async with using(app, start=NOON) as rehearsal:
        patient = await service.patient.options(timeout=0.02, max_timeouts=1).enqueue()
        stuck = await service.stuck.enqueue()
        report = await rehearsal.run_until_empty()
        service.free.set()

        assert (1, 1) == (report.queue("patient").timed_out, report.queue("patient").failed)
        for ticket in (patient, stuck):
            with pytest.raises(JobFailed, match="timeout"):
                await ticket.result(wait=0)


# -- the storage of the app -------------------------------------------------------------------------------


async def test_afterwards_the_app_uses_its_own_storage() -> None:
    async with using(app):
        await service.plain.enqueue(1)
        inside = app.url

    assert ("memory:", f"file:{Path.cwd()}/never-made") == (inside, app.url)
    assert [] == list(Path.cwd().iterdir())
    with pytest.raises(NotRunning):
        _ = app.storage


async def test_an_app_that_was_open_stays_open() -> None:
    async with Dibs("memory:") as own:
        kept = await own.queue("q").enqueue(1, id="kept")
        async with using(own):
            assert await own.queue("q").get("kept") is None
        found = await own.queue("q").get("kept")

        assert found is not None
        assert kept.revision == found.revision


async def test_each_rehearsal_starts_with_an_empty_storage() -> None:
    for _ in range(2):
        async with using(app):
            assert "queued" == (await service.plain.options(id="same").enqueue(1)).verdict


async def test_a_rehearsal_can_use_another_storage() -> None:
    async with using(app, "file:./other") as rehearsal:
        ticket = await service.send.options(delay=3600).enqueue(Mail("ada@example.org", NOON))
        await rehearsal.run_until_empty()

        assert "ada@example.org" == (await ticket.result(wait=0)).to


async def test_a_storage_without_a_manual_clock_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from dibs.storage.capabilities import Capabilities
    from dibs.storage.memory import MemoryStorage

    monkeypatch.setattr(MemoryStorage, "capabilities", Capabilities())

    with pytest.raises(ConfigurationError, match="memory:"):
        using(app)


# -- blocking ------------------------------------------------------------------------------------------


@pytest.fixture
def blocking() -> Iterator[Rehearsal]:
    with using(app, start=NOON) as rehearsal:
        yield rehearsal


def test_blocking_code_uses_the_blocking_twin(blocking: Rehearsal) -> None:
    ticket = service.plain.sync.options(delay=5).enqueue(1)
    idle = blocking.sync.run_due()
    blocking.sync.advance(5)
    busy = blocking.sync.run_until_empty()

    assert (0, 1) == (idle.total("completed"), busy.total("completed"))
    assert "1" == ticket.result(wait=0)
    assert NOON + timedelta(seconds=5) == blocking.sync.now


def test_inline_works_for_blocking_code_too() -> None:
    with using(app, inline=True):
        assert "3" == service.plain.sync.enqueue(3).result(wait=0)


async def test_an_async_test_may_use_a_rehearsal_of_a_blocking_fixture(blocking: Rehearsal) -> None:
    await service.plain.enqueue(1)

    assert 1 == (await blocking.run_until_empty()).total("completed")


def test_jobs_run_after_the_application_has_closed_its_app(blocking: Rehearsal) -> None:
    with app.sync:
        ticket = service.plain.sync.enqueue(1)
    report = blocking.sync.run_due()

    assert 1 == report.total("completed")
    assert "1" == ticket.result(wait=0)
