"""Keys of jobs, and the limits that tasks declare for their queues."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, cast

import pytest
from attrs import evolve

from dibs import (
    BadHandler,
    ConfigurationError,
    Dibs,
    JobDropped,
    Queue,
    QueueFull,
    Rate,
    Refused,
    Task,
    Update,
)
from dibs.client.options.queue_settings import build_rate
from dibs.errors import DibsError
from dibs.maintenance.declared_settings import apply_declared_settings
from dibs.model.requests import Settings, SettingsPatch, StartRate
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Storage
from tests.client import handlers
from tests.client.manual_claims import claimed


def task_with(app: Dibs, key: Any, function: Callable[..., Any] = handlers.thumbnail) -> Task[Any, Any]:
    return cast("Task[Any, Any]", app.task(queue="q", key=key)(function))


async def key_of(queue: Queue, id: str) -> str | None:
    status = await queue.get(id)
    assert status is not None
    return status.key


async def settings(app: Dibs, queue: str) -> Settings:
    return {info.name: info.settings for info in await app.storage.queues()}[queue]


async def test_a_queue_takes_the_key_of_a_job(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a", key="ada")
    await any_queue.enqueue_many([any_queue.bind(2, id="b", key=7), any_queue.bind(3, id="c")])
    async with claimed(any_queue) as claim:
        await claim.complete(then=[any_queue.bind(4, id="d", key="dan")])

    assert ["7", None, "dan"] == [await key_of(any_queue, id) for id in "bcd"]
    assert [] == [one.id async for one in any_queue.list("completed") if one.key is not None]


@pytest.mark.parametrize("key", ["path", lambda path, **_: path])
async def test_a_task_derives_the_key_from_its_arguments(app: Dibs, key: Any) -> None:
    task = task_with(app, key)
    tickets = [await task.enqueue("a"), await task.enqueue(path="b", width=3)]
    tickets += await task.enqueue_many([task.bind("c"), task.options(key="own").bind("d")])
    tickets += [await task.options(key=None).enqueue("e"), await task.options(priority=1).enqueue("f")]
    async with claimed(task.queue) as claim:
        await claim.complete(then=[task.options(id="then").bind("g")])

    keys = [(await ticket.status()).key for ticket in tickets[:-1]]
    assert ["a", "b", "c", "own", None] == keys
    assert "g" == await key_of(task.queue, "then")


async def test_a_parameter_that_is_left_out_has_its_default_as_key(app: Dibs) -> None:
    task = task_with(app, "width")

    assert "200" == (await (await task.enqueue("a")).status()).key
    assert "5" == (await (await task.enqueue("a", 5)).status()).key


async def test_the_ticks_of_a_periodic_task_have_its_key(app: Dibs) -> None:
    app.task(queue="q", key="count", every=3600)(handlers.refresh)

    schedule = app.handlers["q"].schedule
    assert schedule is not None
    assert "1" == schedule.data.key


async def test_data_that_is_enqueued_past_the_task_has_no_key(app: Dibs) -> None:
    task = task_with(app, "path")
    call = {"args": ["a"], "kwargs": {}}

    assert (await (await task.queue.enqueue(call)).status()).key is None
    assert "a" == (await (await task.queue.enqueue(call, key="a")).status()).key


WRONG_KEYS: dict[str, tuple[Any, str]] = {
    "no parameter": ("customer", r"'customer', which is no parameter of thumbnail; .* are path, width"),
    "a number": (5, "pass the name of a parameter of thumbnail"),
    "a coroutine function": (handlers.refresh, "a `def` function"),
}


@pytest.mark.parametrize(("key", "advice"), WRONG_KEYS.values(), ids=WRONG_KEYS)
def test_a_wrong_key_is_refused_where_it_is_declared(key: Any, advice: str) -> None:
    app = Dibs("memory:")
    with pytest.raises(Refused, match=advice) as refused:
        task_with(app, key)

    assert "key" == refused.value.field
    assert "q" not in app.handlers


def test_a_parameter_of_many_values_is_no_key() -> None:
    with pytest.raises(Refused, match=r"its parameters are none"):
        task_with(Dibs("memory:"), "numbers", handlers.counted)


def fail(*_: Any, **__: Any) -> str:
    raise KeyError("customer")


@pytest.mark.parametrize(
    ("key", "reason"),
    [(lambda *_: 1.5, "1.5 of type float"), (lambda *_: "x" * 129, "129 bytes"), (fail, "raised KeyError")],
)
async def test_a_key_that_is_no_key_is_refused_with_its_task(app: Dibs, key: Any, reason: str) -> None:
    task = task_with(app, key)

    for call in (task.enqueue("a"), task.enqueue_many([task.bind("a")])):
        with pytest.raises(DibsError, match=r"thumbnail|1 of 1") as refused:
            await call
        one = getattr(refused.value, "exceptions", [refused.value])[0]
        assert "key" == one.field
        assert reason in str(one)
    with pytest.raises(Refused, match="missing a required argument: 'path'"):
        await task.enqueue()


@pytest.mark.parametrize(
    ("rate", "stored"),
    [
        (Rate(100_000, per="1m", unit=1_000), StartRate(100, 60_000)),
        (Rate(100_000, per="1m", unit=3_000, burst=2), StartRate(100, 180_000, 2)),
        ("100000/m unit 1000", StartRate(100, 60_000)),
        ("100000/m unit 1000 burst 5", StartRate(100, 60_000, 5)),
    ],
)
def test_a_rate_with_a_unit_is_stored_as_starts(rate: Rate | str, stored: StartRate) -> None:
    assert stored == build_rate("rate", rate)


@pytest.mark.parametrize("unit", [0, -1, 1.5, True, "1", 10**9 + 1])
def test_a_bad_unit_is_refused(unit: Any) -> None:
    with pytest.raises(Refused) as refused:
        Rate(100, per="1m", unit=unit)

    assert "unit" == refused.value.field


def test_two_units_of_a_task_are_refused() -> None:
    with pytest.raises(Refused, match="rate and key_rate have the units 10 and 1000; use the same unit"):
        Dibs("memory:").task(queue="q", rate="100/s unit 10", key_rate=Rate(100_000, per="1m", unit=1_000))(
            handlers.thumbnail
        )


async def test_a_worker_writes_the_limits_that_the_decorator_states(any_url: str) -> None:
    async with Dibs(any_url) as app:
        app.task(
            queue="q",
            key="count",
            per_key=1,
            rate=Rate(5, per=1, burst=5),
            key_rate=Rate(10, per="1m"),
            max_active=20,
            log_results=100,
        )(handlers.refresh)
        await app.queue("q").configure(log_age=60, per_key=4)

        await app.work(until="empty")

        found = await settings(app, "q")
        assert (1, 20, 100, 60_000) == (found.per_key, found.max_active, found.log_results, found.log_age)
        assert (StartRate(5, 1000, 5), StartRate(10, 60_000)) == (found.rate, found.key_rate)


async def test_a_changed_limit_is_said_aloud(app: Dibs, caplog: pytest.LogCaptureFixture) -> None:
    app.task(queue="q", rate=Rate(5, per=1))(handlers.refresh)
    await app.queue("q").configure(rate=Rate(1, per=60))
    caplog.set_level(logging.INFO, "dibs.worker")
    await app.work(until="empty")

    (record,) = [record for record in caplog.records if "rate" in record.getMessage()]
    assert "WARNING" == record.levelname
    assert (
        "q: rate is Rate(starts=5, per=1.0, burst=1) now, as its handler declares; "
        "it was Rate(starts=1, per=60.0, burst=1)" == record.getMessage()
    )


class WithoutLimits:
    """A storage without the capability `limits`."""

    def __init__(self, inside: Storage) -> None:
        self._inside = inside
        self.capabilities = evolve(inside.capabilities, limits=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


class StorageWithoutLimits(MemoryStorage):
    """A memory storage that declares no limits."""

    capabilities = evolve(MemoryStorage.capabilities, limits=False)


async def test_a_limit_is_refused_before_the_work_on_a_storage_without_limits(app: Dibs) -> None:
    app.task(queue="plain", max_active=3)(handlers.refresh)
    app.task(queue="q", rate=Rate(5, per=1))(handlers.take_nothing)
    await app.open()
    declared = app.handlers.declared_settings(["plain", "q"])

    with pytest.raises(ConfigurationError, match=r"\(q: rate\), but .* not have the capability `limits`"):
        await apply_declared_settings(cast("Storage", WithoutLimits(app.storage)), declared)
    assert [] == await app.storage.queues()
    declared["q"] = SettingsPatch(rate=None)
    await apply_declared_settings(cast("Storage", WithoutLimits(app.storage)), declared)
    await app.close()


def test_a_failure_handler_has_no_key() -> None:
    with pytest.raises((Refused, BadHandler)) as refused:
        Dibs("memory:").queue("q").on_failure(key="failure")(handlers.alert)  # type: ignore[call-overload]

    assert "key" == getattr(refused.value, "field", "")


async def test_a_worker_does_not_start_with_a_limit_that_the_storage_cannot_obey() -> None:
    app = Dibs("memory:")
    app.task(queue="q", per_key=1)(handlers.refresh)
    with app.override_storage(cast("Storage", StorageWithoutLimits())):
        ticket = await app.get_task("q").enqueue()
        with pytest.raises(ConfigurationError, match="q: per_key"):
            await asyncio.wait_for(app.work(until="empty"), 30)

        assert "waiting" == (await ticket.status()).state


# -- A bound on the waiting jobs of a queue: what enqueues raise and return, and what is never stopped --


async def test_a_full_queue_refuses_a_new_job_and_takes_an_update(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1)
    await any_queue.enqueue(1, id="a")
    with pytest.raises(
        QueueFull, match=f"'{any_queue.name}' has as many waiting jobs as its max_waiting"
    ) as full:
        await any_queue.enqueue(2, id="b", request_key="k")
    updated = await any_queue.enqueue(3, id="a")

    (ticket,) = full.value.tickets
    assert (any_queue.name, 0) == (full.value.queue, full.value.accepted)
    assert ("b", "full", 0) == (ticket.id, ticket.verdict, ticket.revision)
    assert "updated" == updated.verdict
    async with claimed(any_queue):
        assert "queued" == (await any_queue.enqueue(2, id="b", request_key="k")).verdict


async def test_the_tickets_of_a_batch_say_which_jobs_a_full_queue_took(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1002)
    await any_queue.enqueue(0, id="known")
    items = [any_queue.bind(n, id=f"{n:04}") for n in range(1100)]
    with pytest.raises(QueueFull, match="did not take 99 of 1,101 jobs") as full:
        await any_queue.enqueue_many([*items, any_queue.bind(1, id="known")])

    verdicts = [ticket.verdict for ticket in full.value.tickets]
    assert ["queued"] * 1001 + ["full"] * 99 + ["updated"] == verdicts
    assert 1002 == full.value.accepted
    assert 1002 == (await any_queue.counts()).waiting


async def test_a_dropped_job_ends_a_wait_at_once(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1, when_full="drop_new")
    tickets = await any_queue.enqueue_many([1, 2])
    dropped = tickets[1]

    assert ["queued", "dropped"] == [ticket.verdict for ticket in tickets]
    assert ("dropped", "dropped") == (dropped.verdict, (await dropped.status()).state)
    with pytest.raises(JobDropped, match=f"{any_queue.name}/{dropped.id}: .*was not enqueued"):
        await dropped.result(wait=None)
    with pytest.raises(JobDropped):
        await anext(dropped.progress())
    with pytest.raises(JobDropped):
        await any_queue.enqueue_and_wait(3, wait=None)
    assert "not_found" == await dropped.cancel()
    assert "absent" == (await any_queue.enqueue(id="none", on_conflict=Update(create=False))).verdict


async def test_concurrent_enqueues_fill_a_queue_exactly(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=7)
    calls = [any_queue.enqueue(n) for n in range(40)]
    found = await asyncio.gather(*calls, return_exceptions=True)

    assert 33 == sum(isinstance(one, QueueFull) for one in found)
    assert 7 == (await any_queue.counts()).waiting


async def test_a_blocking_enqueue_of_a_full_queue(any_queue: Queue) -> None:
    await any_queue.configure(max_waiting=1)

    def enqueue() -> tuple[str | None, int]:
        ticket = any_queue.sync.enqueue(1)
        with pytest.raises(QueueFull):
            any_queue.sync.enqueue(2)
        with pytest.raises(QueueFull) as full:
            any_queue.sync.enqueue_many([3, 4])
        return ticket.verdict, full.value.accepted

    assert ("queued", 0) == await asyncio.to_thread(enqueue)


async def job() -> None: ...


async def test_a_task_declares_its_bound(any_app: Dibs) -> None:
    task = any_app.task(queue="bounded", max_waiting=2, when_full="drop_new")(job)
    await any_app.work(until="empty", queues=["bounded"])
    settings = {info.name: info.settings for info in await any_app.storage.queues()}["bounded"]

    assert Settings(max_waiting=2, when_full="drop_new") == settings
    assert ["queued", "queued", "dropped"] == [(await task.enqueue()).verdict for _ in range(3)]


async def test_a_schedule_of_a_full_queue_is_refused(any_app: Dibs) -> None:
    task = any_app.task(queue="bounded")(job)
    await task.queue.configure(max_waiting=1, when_full="drop_new")
    await task.enqueue()
    with pytest.raises(QueueFull, match="its schedule was not stored"):
        await task.schedule("tenant-7", every="1h")
    await task.queue.configure(max_waiting=2)
    await task.schedule("tenant-7", every="1h")
    await task.schedule("tenant-7", every="2h")

    assert 2 == (await task.queue.counts()).waiting


async def test_a_worker_warns_of_a_tick_that_a_full_queue_does_not_take(
    app: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    task = app.task(queue="bounded", every="1h", max_waiting=1)(job)
    await task.queue.configure(paused=True, max_waiting=1)
    await task.enqueue()
    with caplog.at_level(logging.WARNING, "dibs.worker"):
        await app.work(until="idle", queues=["bounded"])

    assert "bounded: enqueueing the next tick failed, trying again in a minute" in caplog.text
    assert "max_waiting" in caplog.text


def test_queue_full_is_an_error_of_dibs() -> None:
    full = QueueFull(queue="q")

    assert isinstance(full, DibsError)
    assert ("q", 0) == (full.queue, full.accepted)
    assert "max_waiting" in str(full)
