"""Schedules made at run time, on each storage, with a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dibs import Dibs, PermanentError, Refused
from dibs.client.stored_schedules import find_schedules
from dibs.testing import Rehearsal, using

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
ran: list[str] = []
#: Called in each run, with the text of the run.
in_run: list[Callable[[str], Any]] = []


async def report(tenant: str = "all", kind: str = "pdf") -> None:
    ran.append(f"{tenant}.{kind}")
    for act in in_run:
        await act(tenant)


app = Dibs("memory:")
task = app.task(queue="report", max_retries=1, max_stalls=0)(report)
schedules = task.queue.schedules


@pytest.fixture(autouse=True)
def no_runs_of_another_test() -> None:
    ran.clear()
    in_run.clear()


@pytest.fixture
async def world(any_url: str) -> AsyncIterator[Rehearsal]:
    async with using(app, any_url, start=NOON) as rehearsal:
        yield rehearsal


async def run_for(world: Rehearsal, hours: float) -> list[str]:
    """Move the clock on, a quarter of an hour at a time, run what is due, and return the runs."""
    ran.clear()
    for _ in range(round(hours * 4)):
        await world.advance(HOUR / 4)
        await world.run_due()
    return list(ran)


async def names() -> list[str]:
    return sorted(one.name for one in await schedules.list())


async def test_a_schedule_runs_until_it_is_removed(world: Rehearsal) -> None:
    made = await task.schedule("tenant-7", task.bind("t7", kind="csv"), cron="0 * * * *")
    await task.schedule("every", every="30m")
    at_two = await run_for(world, 2)

    assert ("tenant-7", "0 * * * *", "UTC", None) == (made.name, made.cron, made.tz, made.every)
    assert (NOON + HOUR, ("t7",)) == (made.next_run, made.job.args)
    assert sorted(["all.pdf"] * 4 + ["t7.csv"] * 2) == sorted(at_two)
    assert ["every", "tenant-7"] == await names()
    assert await schedules.remove("every")
    assert not await schedules.remove("every")
    assert ["t7.csv"] == await run_for(world, 1)
    assert await schedules.get("every") is None


async def test_a_change_applies_in_place(world: Rehearsal) -> None:
    await task.schedule("a", task.bind("old"), every=HOUR)
    same = await task.schedule("a", task.bind("new"), every=HOUR)
    assert (NOON + HOUR, ("new",)) == (same.next_run, same.job.args)
    later = await task.schedule("a", task.options(priority=5).bind("new"), cron="0 15 * * *", tz="Asia/Tokyo")

    assert (datetime(2030, 1, 2, 6, tzinfo=UTC), 5) == (later.next_run, later.job.priority)
    await task.schedule("a", task.bind("new"), every=HOUR)
    assert ["new.pdf"] == await run_for(world, 1)


async def test_a_due_run_comes_before_new_times(world: Rehearsal) -> None:
    await task.schedule("a", every=HOUR)
    await world.advance(HOUR)
    await task.schedule("a", every=3 * HOUR)
    await world.run_due()

    assert ["all.pdf"] == ran
    status = await schedules.get("a")
    assert status is not None
    assert NOON + 3 * HOUR == status.next_run


@pytest.mark.parametrize("catch_up", [True, False])
async def test_a_downtime_is_made_up_once_or_not(world: Rehearsal, *, catch_up: bool) -> None:
    await task.schedule("a", every=HOUR, catch_up=catch_up)
    await world.advance(100.5 * HOUR)
    await world.run_due()

    assert ["all.pdf"] * catch_up == ran
    assert ["all.pdf"] == await run_for(world, 1)


async def test_a_schedule_survives_failures_and_exhausted_retries(world: Rehearsal) -> None:
    async def fail(_: str) -> None:
        raise ValueError if len(ran) % 2 else PermanentError("no")

    in_run.append(fail)
    await task.schedule("a", every=HOUR)

    assert 3 <= len(await run_for(world, 3))
    assert ["a"] == await names()
    assert 3 <= len([one async for one in task.queue.list("failed")]) + len(ran) // 2


async def test_a_schedule_survives_a_dead_holder_and_exhausted_stalls(world: Rehearsal) -> None:
    await task.schedule("a", every=HOUR)
    await world.advance(HOUR)
    lease = (await app.storage.grant(["report"], 1000, "dead")).lease
    assert 1 == len((await app.storage.claim("report", lease, 1)).jobs)
    await world.advance(60)
    report_of_run = await world.run_due()

    assert (1, []) == (report_of_run.total("failed"), ran)
    assert ["all.pdf"] == await run_for(world, 1)


async def test_a_paused_queue_runs_it_once_after_resume(world: Rehearsal) -> None:
    await task.schedule("a", every=HOUR)
    await task.queue.pause()
    assert [] == await run_for(world, 3)
    await task.queue.resume()
    await world.run_due()

    assert ["all.pdf"] == ran


async def test_pause_and_resume(world: Rehearsal) -> None:
    await task.schedule("a", every=HOUR)
    assert await schedules.pause("a")
    assert await schedules.pause("a")
    paused = await task.schedule("a", task.bind("new"), every=2 * HOUR)
    assert (True, None, ("new",)) == (paused.paused, paused.next_run, paused.job.args)
    assert [] == await run_for(world, 4)
    assert await schedules.resume("a")

    assert ["new.pdf"] == await run_for(world, 2)
    assert [False, False] == [await schedules.pause("no"), await schedules.resume("no")]


@pytest.mark.parametrize("ends_with", ["completed", "failed"])
@pytest.mark.parametrize("what", ["remove", "pause", "change", "remove and set"])
async def test_what_happens_during_a_run_applies_after_it(
    world: Rehearsal, what: str, ends_with: str
) -> None:
    async def act(tenant: str) -> None:
        if tenant == "first":
            if what in ("remove", "remove and set"):
                assert await schedules.remove("a")
                assert not await schedules.remove("a")
            if what in ("change", "remove and set"):
                await task.schedule("a", task.bind("second"), every=3 * HOUR)
            if what == "pause":
                assert await schedules.pause("a")
            if ends_with == "failed":
                raise PermanentError("no")

    in_run.append(act)
    await task.schedule("a", task.bind("first"), every=HOUR)
    assert ["first.pdf"] == await run_for(world, 1)
    expected = ["second.pdf"] if what in ("change", "remove and set") else []

    assert expected == await run_for(world, 2)
    assert [] == await run_for(world, 2)
    assert (["a"] if what != "remove" else []) == await names()


async def test_a_removal_stops_the_retry_of_an_active_run(world: Rehearsal) -> None:
    async def act(_: str) -> None:
        await schedules.remove("a")
        raise ValueError

    in_run.append(act)
    await task.schedule("a", every=HOUR)

    assert ["all.pdf"] == await run_for(world, 3)
    assert {"waiting": 0, "active": 0} == {
        name: getattr(await task.queue.counts(), name) for name in ("waiting", "active")
    }


async def test_two_programs_that_set_one_schedule_make_one(world: Rehearsal) -> None:
    calls = [task.schedule("a", task.bind(str(number)), every=HOUR) for number in range(8)]
    await asyncio.gather(*calls)

    assert ["a"] == await names()
    assert 1 == len(await run_for(world, 1))


async def test_a_claim_continues_the_schedule(world: Rehearsal) -> None:
    queue = app.queue("plain")
    await queue.schedules.set("a", queue.bind({"x": 1}), every=HOUR)
    for hour in (1, 2):
        await world.advance(HOUR)
        async with queue.receive(wait=0) as claims:
            claim = await anext(claims)
            with pytest.raises(Refused, match="cannot be handed off"):
                await claim.hand_off()
            if hour == 2:
                await queue.schedules.remove("a")
            await claim.complete()
            assert [] == [one async for one in claims]

    assert [] == await queue.schedules.list()


@pytest.mark.long
async def test_a_listing_finds_many_and_due_ones(world: Rehearsal) -> None:
    await task.queue.enqueue_many([task.bind(str(number)) for number in range(20)])
    made = [f"{number}" for number in range(1200)]
    for first in range(0, len(made), 100):
        await asyncio.gather(*(task.schedule(name, cron="0 3 1 1 *") for name in made[first : first + 100]))
    await task.schedule("due", every=HOUR)
    await world.advance(HOUR)

    assert sorted([*made, "due"]) == await names()
    assert 7 == len(await schedules.list(limit=7))
    assert 1201 == len([id async for id, _ in find_schedules(app.storage, "report")])


def test_blocking_twins() -> None:
    with using(app, start=NOON) as rehearsal:
        task.sync.schedule("a", task.bind("sync"), every=HOUR)
        rehearsal.sync.advance(HOUR)
        rehearsal.sync.run_due()
        twin = task.sync.queue.schedules

        assert (["sync.pdf"], ["a"]) == (ran, [one.name for one in twin.list()])
        assert (True, True, True, None) == (
            twin.pause("a"),
            twin.resume("a"),
            twin.remove("a"),
            twin.get("a"),
        )
