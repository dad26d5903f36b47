"""Reaping expired runs and pruning expired records."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from dibs import Dibs, Refused, Retention
from dibs.errors import StorageUnavailable
from dibs.maintenance import reap as reaping
from dibs.maintenance.reap import ReapCandidates, Rotation, prune, reap
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.requests import Complete, EnqueueRequest, HandOff, Settings, Settlement
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.client import handlers
from tests.maintenance.stepwise import batches_of
from tests.worker.faulty_storage import FaultyStorage


async def claimed(
    storage: Storage, number: int, retention: OutcomeRetention | None = None
) -> list[Settlement]:
    """Claim so many jobs under a lease of 10 ms, at time 0."""
    data = JobData(retention=retention)
    await storage.enqueue(
        "q", [EnqueueRequest(job=NewJob(id=str(n), data=data)) for n in range(number)], now=0
    )
    lease = (await storage.grant(["q"], 10, "test", now=0)).lease
    jobs = (await storage.claim("q", lease, number, now=0)).jobs
    return [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in jobs if job.run]


async def test_every_job_of_a_dead_worker_is_reaped() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await claimed(storage, 5)
        await storage.counts(["q"], now=10)
        with batches_of(2, reaping):
            reaped = await reap(storage, "q")

        assert ["stalled"] * 5 == [job.kind for job in reaped]
        assert 5 == (await storage.counts(["q"]))["q"].waiting


async def test_jobs_of_living_workers_are_not_reaped() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await claimed(storage, 5)
        await storage.counts(["q"], now=9)

        assert [] == await reap(storage, "q")


async def test_idle_queues_are_reaped_at_first_and_then_only_counted() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        candidates = ReapCandidates(storage, ["p", "q"])
        assert ["p", "q"] == await candidates.select_queues()
        assert [] == await candidates.select_queues()
        [job, *_] = await claimed(storage, 2)
        assert ["q"] == await candidates.select_queues()
        await storage.settle("q", [job], now=0)
        assert ["q"] == await candidates.select_queues()


async def test_a_queue_with_handed_off_runs_only_is_not_reaped() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        candidates = ReapCandidates(storage, ["q"])
        await candidates.select_queues()
        [job] = await claimed(storage, 1)
        await storage.settle("q", [replace(job, action=HandOff())], now=0)

        assert [] == await candidates.select_queues()


async def test_a_large_queue_is_reaped_without_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaping, "MAX_COUNTED_SIZE", 4)
    async with open_storage("memory:", clock="manual") as storage:
        counting = FaultyStorage(storage)
        candidates = ReapCandidates(counting, ["p", "q"])
        await storage.settle("q", await claimed(storage, 5), now=0)
        await candidates.select_queues()
        assert ["q"] == await candidates.select_queues()
        assert [("counts", ["p", "q"]), ("counts", ["p"])] == counting.asked


async def test_all_queues_are_reaped_again_even_if_a_count_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reap removes a lease without jobs; after a failed count, all queues are still due."""
    monkeypatch.setattr(reaping, "REAP_ALL_EVERY", 0.0)
    async with open_storage("memory:", clock="manual") as storage:
        counting = FaultyStorage(storage)
        candidates = ReapCandidates(counting, ["p", "q"])
        assert ["p", "q"] == await candidates.select_queues()
        monkeypatch.setattr(reaping, "REAP_ALL_EVERY", 3600.0)
        counting.fail("counts", StorageUnavailable("nobody there"))
        with pytest.raises(StorageUnavailable):
            await candidates.select_queues()
        assert ["p", "q"] == await candidates.select_queues()
        assert [] == await candidates.select_queues()


async def test_everything_expired_is_removed() -> None:
    async with open_storage("memory:", clock="manual") as storage:
        await storage.settle("q", await claimed(storage, 5, OutcomeRetention(completed=100)), now=0)
        await storage.counts(["q"], now=100)
        with batches_of(2, reaping):
            done = await prune(storage, "q")

        assert (5, False) == (done.outcomes, done.more)


async def test_of_many_idle_queues_a_few_are_reaped_in_a_turn() -> None:
    queues = [f"q{n}" for n in range(100)]
    async with open_storage("memory:", clock="manual") as storage:
        counting = FaultyStorage(storage)
        candidates = ReapCandidates(counting, [*queues, "q"])
        await claimed(storage, 1)
        found = await candidates.select_queues()

        assert "q" in found
        assert len(found) in {reaping.IDLE_QUEUES, reaping.IDLE_QUEUES + 1}
        assert ["q"] == await candidates.select_queues()
        assert ["counts", "counts"] == counting.calls


# -- Turns of a part of the queues -------------------------------------------------------------------


def test_few_queues_are_in_every_turn() -> None:
    rotation = Rotation(["a", "b"], 2)

    assert [["a", "b"]] * 2 == [list(rotation.next_turn()) for _ in range(2)]


def test_each_queue_has_its_turn() -> None:
    queues = [f"q{n}" for n in range(25)]
    rotation = Rotation(queues, 10)
    turns = [rotation.next_turn() for _ in range(5)]

    assert [10] * 5 == [len(set(turn)) for turn in turns]
    assert set(queues) == {queue for turn in turns[:3] for queue in turn}
    assert dict.fromkeys(queues, 2) == {queue: sum(turn.count(queue) for turn in turns) for queue in queues}


def test_without_queues_a_turn_is_empty() -> None:
    assert [] == list(Rotation([], 10).next_turn())


# -- The settings that a task declares are in the storage once a worker has started ------------------


async def settings(app: Dibs, queue: str) -> Settings:
    return {info.name: info.settings for info in await app.storage.queues()}[queue]


async def test_a_worker_writes_what_the_decorator_states(any_url: str) -> None:
    async with Dibs(any_url) as app:
        app.task(queue="q", max_active=3, retention=60)(handlers.refresh)
        app.queue("plain").handler(max_active=None)(handlers.take)
        await app.queue("q").configure(max_active=8, log_age=60)
        await app.queue("plain").configure(retention=5)

        await app.work(until="empty")

        found = await settings(app, "q")
        assert (found.max_active, found.log_age) == (3, 60_000)
        assert Retention.from_model(found.retention) == Retention(completed=60, failed=60, cancelled=60)
        assert (await settings(app, "plain")).retention.completed == 5000


async def test_what_is_configured_from_outside_stays_where_the_decorator_states_none(app: Dibs) -> None:
    app.task(queue="q", retention=60)(handlers.refresh)
    await app.queue("q").configure(max_active=8)

    await app.work(until="empty")

    assert (await settings(app, "q")).max_active == 8


async def test_each_change_is_logged_and_a_second_start_changes_nothing(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    app.task(queue="q", max_active=3)(handlers.refresh)
    caplog.set_level(logging.INFO, "dibs.worker")
    await app.work(until="empty")
    first = [record.getMessage() for record in caplog.records if "max_active" in record.getMessage()]
    caplog.clear()

    await app.work(until="empty")
    second = [record for record in caplog.records if "max_active" in record.getMessage()]
    await app.queue("q").configure(max_active=5)
    await app.work(until="empty")

    assert first == ["q: max_active is 3 now, as its handler declares; it was None"]
    assert second == []
    (warning,) = [record for record in caplog.records if "max_active" in record.getMessage()]
    assert (warning.levelname, "it was 5" in warning.getMessage()) == ("WARNING", True)


@pytest.mark.parametrize("wrong", [{"max_active": -1}, {"max_active": "3"}, {"retention": -1}])
def test_a_wrong_setting_is_refused_where_it_is_declared(wrong: dict[str, Any]) -> None:
    app = Dibs("memory:")
    with pytest.raises(Refused) as refused:
        app.task(queue="q", **wrong)(handlers.refresh)

    (field,) = wrong
    assert refused.value.field == field
