"""`dibs move` moves everything, and a crash at any step loses no job and duplicates none."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from attrs import evolve

from dibs.cli.commands.move import NOTES_QUEUE, MoveCounts, move
from dibs.errors import Refused
from dibs.model.job import Error, JobData, NewJob, Slot
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.storage.protocol import Storage
from dibs.storage.registry import open_storage
from tests.cli.shell import Shell


class Crashed(Exception):
    """Raised by CrashingStorage in place of a killed process."""


class CrashingStorage:
    """A storage that raises Crashed at its n-th call, before or after the call."""

    def __init__(self, storage: Storage, countdown: list[int], *, after: bool) -> None:
        self._storage, self._countdown, self._after = storage, countdown, after

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._storage, name)
        if not callable(verb):
            return verb

        async def step(*args: Any, **kwargs: Any) -> Any:
            self._countdown[0] -= 1
            if self._countdown[0] == 0 and not self._after:
                raise Crashed
            answer = await verb(*args, **kwargs)
            if self._countdown[0] == 0:
                raise Crashed
            return answer

        return step


def silent(_ids: int) -> None:
    pass


async def filled(storage: Storage) -> None:
    """Fill a storage with one job of each state, and many waiting jobs."""
    many = [
        EnqueueRequest(job=NewJob(id=f"{n:03}", data=JobData(payload=b"%d" % n, priority=n % 3)))
        for n in range(120)
    ]
    rate = StartRate(1000, 1000, 10)
    await storage.configure("q", SettingsPatch(fail_handler=True, per_key=2, rate=rate, key_rate=rate))
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=name)) for name in ("done", "failed", "given")])
    lease = (await storage.grant(["q"], 60_000, "test")).lease
    hows: dict[str, SettleAction] = {
        "done": Complete(result=b"1"),
        "failed": Fail(error=Error(type="E")),
        "given": HandOff(),
    }
    for job in (await storage.claim("q", lease, 10)).jobs:
        assert job.run is not None
        await storage.settle("q", [Settlement(id=job.id, fence=job.run.fence, action=hows[job.id])])
    await storage.enqueue("q", [*many, EnqueueRequest(job=NewJob(id="given", data=JobData(payload=b"next")))])
    await storage.configure("q", SettingsPatch(max_active=7))


async def everything(storage: Storage) -> dict[str, dict[str, Slot]]:
    names = [info.name for info in await storage.queues() if info.name != NOTES_QUEUE]
    return {
        name: {record.id: record.slot for record in (await storage.export(name, limit=1000)).records}
        for name in names
    }


async def test_everything_is_moved_unchanged(tmp_path: Path) -> None:
    async with open_storage(f"file:{tmp_path}/a") as source, open_storage("memory:") as target:
        await filled(source)
        before = await everything(source)
        moved = await move(source, target, [*before], wait=False, advance=silent)

        assert {"q": MoveCounts(123), "q!fail": MoveCounts(1)} == moved
        assert before == await everything(target)
        assert {"q": {}, "q!fail": {}} == await everything(source)
        settings = (await target.export("q")).settings
        assert (7, False) == (settings.max_active, settings.paused)
        assert (2, StartRate(1000, 1000, 10), True) == (
            settings.per_key,
            settings.rate,
            settings.fail_handler,
        )
        assert 0 == (await target.counts([NOTES_QUEUE]))[NOTES_QUEUE].waiting


class WithoutLimits:
    """A storage without the capability `limits`."""

    def __init__(self, inside: Storage) -> None:
        self._inside = inside
        self.capabilities = evolve(inside.capabilities, limits=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inside, name)


@pytest.mark.parametrize(
    "limit", [{"per_key": 1}, {"rate": StartRate(1, 1000)}, {"key_rate": StartRate(1, 1000)}], ids=str
)
async def test_a_limited_queue_moves_only_to_a_storage_with_limits(limit: dict[str, Any]) -> None:
    async with open_storage("memory:") as source, open_storage("memory:") as inside:
        target = cast("Storage", WithoutLimits(inside))
        await source.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        await source.enqueue("free", [EnqueueRequest(job=NewJob(id="a"))])
        await source.configure("q", SettingsPatch(**limit))

        with pytest.raises(Refused, match=r"limits by key or rate \(q\)"):
            await move(source, target, ["free", "q"], wait=False, advance=silent)

        assert [] == await inside.queues()
        assert [False, False] == [info.settings.paused for info in await source.queues()]
        await source.configure("q", SettingsPatch(per_key=None, rate=None, key_rate=None))
        await move(source, target, ["free", "q"], wait=False, advance=silent)
        assert ["a"] == [record.id for record in (await inside.export("q")).records]


async def test_a_move_sets_fail_handler_and_never_clears_it() -> None:
    async with open_storage("memory:") as source, open_storage("memory:") as target:
        for name in ("with", "without"):
            await source.enqueue(name, [EnqueueRequest(job=NewJob(id="a"))])
            await target.configure(name, SettingsPatch(fail_handler=name == "without"))
        await source.configure("with", SettingsPatch(fail_handler=True))
        await move(source, target, ["with", "without"], wait=False, advance=silent)

        assert {True} == {(await target.export(name)).settings.fail_handler for name in ("with", "without")}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_crash_at_any_step_loses_and_duplicates_no_job(*, after: bool) -> None:
    """Crash before or after each call of a move, then repeat the move."""
    crashed, step = True, 0
    while crashed:
        step += 1
        crashed = await crash_at(step, after=after)

    assert step > 20


async def crash_at(step: int, *, after: bool) -> bool:
    async with open_storage("memory:") as source, open_storage("memory:") as target:
        await filled(source)
        before, countdown, crashed = await everything(source), [step], False
        try:
            crashing = [CrashingStorage(one, countdown, after=after) for one in (source, target)]
            await move(crashing[0], crashing[1], [*before], wait=False, advance=silent)
        except Crashed:
            crashed = True
            lease = (await target.grant(["q"], 60_000, "test")).lease
            early = (await target.claim("q", lease, 1)).jobs
            assert () == early or {} == (await everything(source))["q"]
            if early:
                return crashed
        await move(source, target, [*before], wait=False, advance=silent)

        assert before == await everything(target)
        assert {"q": {}, "q!fail": {}} == await everything(source)
        assert not (await target.export("q")).settings.paused
        return crashed


async def test_active_jobs_are_refused_or_waited_for() -> None:
    async with open_storage("memory:") as source, open_storage("memory:") as target:
        await source.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))])
        lease = (await source.grant(["q"], 60_000, "test")).lease
        (job,) = (await source.claim("q", lease, 1)).jobs
        with pytest.raises(Refused, match="--wait"):
            await move(source, target, ["q"], wait=False, advance=silent)
        moving = asyncio.create_task(move(source, target, ["q"], wait=True, advance=silent))
        await asyncio.sleep(0.05)
        assert not moving.done()
        assert job.run is not None
        await source.settle("q", [Settlement(id="a", fence=job.run.fence, action=Complete())])

        assert {"q": MoveCounts(1)} == await moving


async def test_jobs_of_a_dead_worker_do_not_stop_a_move() -> None:
    source = open_storage("memory:", clock="manual")
    async with source, open_storage("memory:") as target:
        await source.enqueue("q", [EnqueueRequest(job=NewJob(id="a"))], now=1000)
        lease = (await source.grant(["q"], 10, "dead", now=1000)).lease
        assert (await source.claim("q", lease, 1, now=1000)).jobs
        assert not (await source.renew(["q"], lease, 10, now=2000))["q"].alive

        assert {"q": MoveCounts(1)} == await move(source, target, ["q"], wait=False, advance=silent)

        (moved,) = await target.get("q", ["a"])
        assert moved.current is not None
        assert moved.current.stalls == 1


async def test_another_job_with_the_same_id_stays_in_the_source() -> None:
    async with open_storage("memory:") as source, open_storage("memory:") as target:
        await source.enqueue(
            "q",
            [
                EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"old"))),
                EnqueueRequest(job=NewJob(id="b")),
            ],
        )
        await target.enqueue("q", [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=b"new")))])

        assert {"q": MoveCounts(1, 1)} == await move(source, target, ["q"], wait=False, advance=silent)
        assert ["a"] == [*(await everything(source))["q"]]
        slot = (await everything(target))["q"]["a"]
        assert slot.current is not None
        assert b"new" == slot.current.data.payload


def test_the_command_moves_and_prints_the_numbers(shell: Shell) -> None:
    there = f"file:{shell.folder}/there"
    shell.type("enqueue", "q", "1", "--id", "a")
    answer = shell.json("move", "--from", shell.url, "--to", there)

    assert {"queues": {"q": {"moved": 1, "left": 0}}} == answer
    assert 1 == shell.type("show", "q", "a").exit_code
    assert 0 == shell.type("show", "q", "a", url=there).exit_code


def test_a_memory_storage_cannot_be_moved(shell: Shell) -> None:
    result = shell.type("move", "--from", "memory:", "--to", shell.url)

    assert 1 == result.exit_code
    assert "inside one process" in result.stderr


def test_source_and_target_must_differ(shell: Shell) -> None:
    shell.type("enqueue", "q", "1", "--id", "a")

    assert 1 == shell.type("move", "--from", shell.url, "--to", shell.url).exit_code
    assert 0 == shell.type("show", "q", "a").exit_code


def test_a_move_without_queues_does_not_print_the_source(shell: Shell) -> None:
    """A URL may hold a password, also in its query."""

    async def create() -> None:
        async with open_storage("file:./source"):
            pass

    asyncio.run(create())
    result = shell.type("move", "--from", "file:./source?fsync=1", "--to", "file:./target")

    assert (0, "the source has no queues\n") == (result.exit_code, result.stdout)
