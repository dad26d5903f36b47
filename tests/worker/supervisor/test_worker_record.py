"""The record that a supervisor keeps of itself: content, end and cost, and storages that refuse it."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from dibs.app import Dibs
from dibs.client.worker_info import WorkerInfo, read_records
from dibs.errors import Refused, StorageReadOnly
from dibs.model.requests import SettingsPatch
from dibs.model.worker_record import WORKERS_QUEUE, WorkerState
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from dibs.version import VERSION
from dibs.worker.supervisor import worker_record
from dibs.worker.supervisor.worker_record import WorkerRecordKeeper
from dibs.worker.work_plan import WorkPlan
from tests.redis_cluster import RedisCluster
from tests.worker.faulty_storage import FaultyStorage, faulty_storage
from tests.worker.jobs import add, put, wait_for_count
from tests.worker.supervisors import on_all_storages, program, working

#: Settings of a worker whose record expires 1.5 s after its last refresh.
SHORT = {"lease": 0.5, "heartbeat": 0.2}


async def nothing() -> None: ...


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_record, "FIRST_AFTER", 0.0)


async def until(app: Dibs, condition: Callable[[Sequence[WorkerInfo]], bool]) -> Sequence[WorkerInfo]:
    async with asyncio.timeout(60):
        while not condition(workers := await app.workers()):  # noqa: ASYNC110 - a worker writes the record
            await asyncio.sleep(0.05)
    return workers


def keeper_of(
    storage: Storage, queues: Sequence[str] = ("q",), **settings: SettingsPatch
) -> WorkerRecordKeeper:
    plan = WorkPlan(queues=tuple(queues), processes=2, reference="", lease=15.0, heartbeat=5.0, poll=1.0)
    return WorkerRecordKeeper(
        storage=storage, plan=plan, settings=settings, get_state=lambda: WorkerState(running=3)
    )


@pytest.fixture
async def storage() -> AsyncIterator[FaultyStorage]:
    async with open_storage("memory:", clock="manual") as storage:
        yield FaultyStorage(storage)


async def test_an_idle_worker_is_listed_until_it_stops(any_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The first record is written before the worker is ready; the next refresh would be 30 s later.
    monkeypatch.setattr(worker_record, "REFRESH_EVERY", 0.1)
    async with Dibs(any_url) as app:
        add(app, "q", nothing)
        task = asyncio.create_task(app.work(["q"], name="pod-7", handle_signals=False))
        (worker,) = await until(app, lambda found: any(worker.ready for worker in found))
        app.stop(0)
        async with asyncio.timeout(60):
            await task

        assert [] == await app.workers()
    assert ("pod-7", os.getpid(), VERSION, ("q",), 1) == (
        worker.name, worker.pid, worker.version, worker.queues, worker.queue_count,
    )  # fmt: skip
    assert ((), 100, 0, 0, False) == (
        worker.processes, worker.capacity, worker.busy, worker.running, worker.stopping,
    )  # fmt: skip
    times = [moment for moment in (worker.started_at, worker.seen_at, worker.expires_at) if moment]
    assert (3, times) == (len(times), sorted(times))


async def test_a_worker_on_a_cluster_is_listed(redis_cluster: RedisCluster) -> None:
    async with Dibs(redis_cluster.url) as app:
        add(app, "records", nothing)
        async with working(app, "records", number=0, until="stopped", name="on-a-cluster"):
            found = await until(app, lambda found: any(worker.name == "on-a-cluster" for worker in found))

    assert [("records",)] == [worker.queues for worker in found if worker.name == "on-a-cluster"]


@pytest.mark.long
@on_all_storages
async def test_a_killed_worker_disappears_by_itself(shared: Dibs, tmp_path: Path) -> None:
    async with program(tmp_path, "echo", processes=2, **SHORT) as killed:
        (worker,) = await until(shared, lambda found: any(len(one.processes) == 2 for one in found))
        killed.kill()
        await killed.wait()
    gone = await until(shared, lambda found: not found)

    assert (killed.pid, 200, 0.5) == (worker.pid, worker.capacity, 0.5)
    assert [] == gone


async def test_runs_of_a_worker_are_read_with_it(app: Dibs) -> None:
    begun, release = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        begun.set()
        await release.wait()

    add(app, "q", wait, size=30)
    async with working(app, "q", number=0, until="stopped", name="pod-7", **SHORT):
        await put(app, "q", "a")
        await begun.wait()
        await until(app, lambda found: any(worker.running for worker in found))
        (worker,) = await app.workers(runs=True)
        release.set()

    assert ("pod-7", 30, 1, [("q", "a", 1)]) == (
        worker.name, worker.busy, worker.running, [(run.queue, run.id, run.attempt) for run in worker.runs],
    )  # fmt: skip


async def test_a_holder_without_a_record_is_listed_with_its_runs(app: Dibs) -> None:
    await put(app, "q", "a")
    lease = (await app.storage.grant(["q"], 60_000, "script")).lease
    await app.storage.claim("q", lease, 1)
    (worker,) = await app.workers(runs=True)

    assert [] == await app.workers()
    assert ("script", False, ["a"]) == (worker.name, worker.recorded, [run.id for run in worker.runs])


async def test_a_record_costs_one_write_in_30_seconds(
    storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) > 10:
            raise asyncio.CancelledError

    monkeypatch.setattr(worker_record.asyncio, "sleep", pause)  # type: ignore[attr-defined]
    with pytest.raises(asyncio.CancelledError):
        await keeper_of(storage).keep()

    assert [0.0, 4.0, *[30.0] * 9] == pauses
    assert ["renew", "import_", "prune", *["amend"] * 9] == storage.calls


async def test_a_record_outlives_one_late_refresh_and_then_expires(storage: FaultyStorage) -> None:
    keeper = keeper_of(storage)
    await keeper._try_write(prune=False)
    [(_, slot)] = (await storage.list(WORKERS_QUEUE, "completed")).items
    expires_at = slot.outcome.expires_at
    found = [await storage.list(WORKERS_QUEUE, "completed", now=now) for now in (expires_at - 1, expires_at)]

    assert 45_000 == keeper.ttl_ms
    assert [1, 0] == [len(page.items) for page in found]


async def test_a_record_that_expired_in_an_outage_is_written_again(storage: FaultyStorage) -> None:
    keeper = keeper_of(storage)
    await keeper._try_write(prune=False)
    (before,) = await read_records(storage)
    await storage.forget(WORKERS_QUEUE, [keeper._id])
    await keeper._try_write(prune=False)
    (after,) = await read_records(storage)

    assert (before.name, before.running, before.queues) == (after.name, after.running, after.queues)


@pytest.mark.long
async def test_a_storage_that_refuses_records_does_not_stop_the_worker(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    add(app, "q", nothing)
    async with faulty_storage(app) as storage:
        for _ in range(100):
            storage.fail("import_", StorageReadOnly("no imports here"))
        async with working(app, "q", number=0, until="stopped", **SHORT):
            await storage.until(lambda: storage.calls.count("import_") > 2)
            await put(app, "q", "a")
            await wait_for_count(app, "q", "completed")
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]

    assert [] == await app.workers()
    assert ["the record of this worker was not written"] == [line.partition(",")[0] for line in warnings]


async def test_a_worker_claims_from_its_own_queues_only(app: Dibs) -> None:
    """The queue of the worker records is not served: a worker of two queues would send other requests."""
    add(app, "q", nothing)
    async with faulty_storage(app) as storage, working(app, "q", number=0, until="stopped", **SHORT):
        await storage.until(lambda: "amend" in storage.calls)

    records = {verb for verb, first in storage.asked if first in (WORKERS_QUEUE, [WORKERS_QUEUE])}
    assert {"renew", "import_", "prune", "amend", "forget"} == records
    assert ["q"] in [[*first] for verb, first in storage.asked if verb == "grant"]


@pytest.mark.long
async def test_a_program_that_works_for_a_moment_writes_no_record(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_record, "FIRST_AFTER", 60.0)
    add(app, "q", nothing)
    async with faulty_storage(app) as storage, working(app, "q", number=0) as task:
        await task

    assert not [verb for verb, first in storage.asked if first == WORKERS_QUEUE]


async def test_declared_settings_and_many_long_names_fit_a_record(storage: FaultyStorage) -> None:
    many = [f"{number:05}" + "q" * 400 for number in range(5000)]
    await keeper_of(storage, q=SettingsPatch(max_active=3))._try_write(prune=False)
    await keeper_of(storage, many)._try_write(prune=False)
    few, lots = sorted(await read_records(storage), key=lambda worker: worker.queue_count)

    assert {"q": {"max_active": 3}} == few.settings
    assert 5000 == lots.queue_count > len(lots.queues) > 2000
    assert many[: len(lots.queues)] == [*lots.queues]


async def test_nobody_enqueues_into_the_queue_of_the_records(any_app: Dibs) -> None:
    with pytest.raises(Refused) as refused:
        await any_app.queue(WORKERS_QUEUE).enqueue(1)

    assert "queue" == refused.value.field


async def test_lists_of_queues_leave_the_records_out(storage: FaultyStorage, app: Dibs) -> None:
    await keeper_of(app.storage)._try_write(prune=False)

    assert [] == await app.queues()
    assert [WORKERS_QUEUE] == [info.name for info in await app.storage.queues()]
