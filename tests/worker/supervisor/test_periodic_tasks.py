"""Periodic tasks on real workers: several workers, workers killed at each step, cancellations, retries."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import Process, create_subprocess_exec
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from dibs.app import Dibs
from dibs.model.events import LogEvent
from dibs.model.requests import EnqueueRequest
from dibs.model.retry import Fixed
from dibs.model.schedule import TICK_ID, Every, Schedule
from dibs.worker import WorkReport, run
from dibs.worker.supervisor import maintenance
from tests.source import PROJECT
from tests.worker import periodic_app
from tests.worker.faulty_storage import faulty_storage
from tests.worker.gate import Gate, wait_for_exit
from tests.worker.jobs import event_kinds
from tests.worker.periodic_app import INTERVAL, add_periodic_tasks, completed

#: The calls before or after which a worker is killed, and which change the state of the tick.
STEPS = [("enqueue", "after"), ("claim", "after"), ("settle", "before"), ("settle", "after")]
#: The other calls of a worker.
OTHER_STEPS = [("enqueue", "before"), ("grant", "before"), ("grant", "after"), ("claim", "before")]

MONTHLY = Schedule(times=Every(30 * 86_400_000))

SCRIPT = """
import asyncio, sys
from tests.worker import periodic_app
from dibs.worker import run

if __name__ == "__main__":
    if sys.argv[2:]:
        periodic_app.die_at(*sys.argv[2:])
    asyncio.run(run(periodic_app.app, queues=[sys.argv[1]], processes={processes}, lease=1, heartbeat=0.3))
"""


@asynccontextmanager
async def program(url: str, *arguments: str, processes: int = 0) -> AsyncIterator[Process]:
    """Run a worker in a new program, and kill it at the end of the block."""
    script = SCRIPT.format(processes=processes)
    env = {**os.environ, "PYTHONPATH": str(PROJECT), "DIBS_URL": url}
    if processes:
        path = Path(url.removeprefix("file:")).parent / "program.py"
        path.write_text(script)
        process = await create_subprocess_exec(sys.executable, str(path), *arguments, env=env)
    else:
        process = await create_subprocess_exec(sys.executable, "-c", script, *arguments, env=env)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def working(*apps: Dibs, **options: Any) -> AsyncIterator[list[asyncio.Task[WorkReport]]]:
    """Run one worker in this process for each application, and cancel them at the end of the block."""
    options = {"queues": ["quick"], "lease": 60.0, "heartbeat": 0.3, **options}
    tasks = [asyncio.create_task(run(app, **options)) for app in apps]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def ticks(events: Sequence[LogEvent]) -> list[int]:
    return [event.run_at // INTERVAL for event in events if event.run_at % INTERVAL == 0]


@pytest.fixture
def url(tmp_path: Path, gate: Gate) -> str:
    return f"file:{tmp_path / 'jobs'}"


@pytest.fixture
async def app(url: str) -> AsyncIterator[Dibs]:
    async with add_periodic_tasks(Dibs(url)) as opened:
        yield opened


# -- many workers ------------------------------------------------------------------------------------


async def test_ten_workers_run_each_tick_once(url: str) -> None:
    apps = [add_periodic_tasks(Dibs(url)) for _ in range(10)]
    async with working(*apps):
        await asyncio.gather(*(app.open() for app in apps))
        found = await completed(apps[0], "quick", 8)
    await asyncio.gather(*(app.close() for app in apps))

    assert len(found) == len(ticks(found))
    assert all(earlier < later for earlier, later in pairwise(ticks(found)))
    assert {1} == {event.attempt for event in found}


# -- killed workers ------------------------------------------------------------------------------------------


async def run_after_kill(url: str, verb: str, when: str) -> list[LogEvent]:
    """Kill a worker at a step, start another, and return its first completed runs."""
    async with program(url, "quick", verb, when) as process:
        assert -signal.SIGKILL == await process.wait()
    app = add_periodic_tasks(Dibs(url))
    async with app, working(app):
        return await completed(app, "quick", 3)


@pytest.mark.long
@pytest.mark.parametrize(
    "steps",
    [pytest.param(STEPS, id="changes"), pytest.param(OTHER_STEPS, marks=pytest.mark.chaos, id="others")],
)
async def test_a_schedule_continues_after_a_kill_at_each_step(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    deaths = [run_after_kill(f"file:{tmp_path / verb}-{when}", verb, when) for verb, when in steps]
    for found in await asyncio.gather(*deaths):
        due = [event.run_at for event in found]

        assert sorted(set(due)) == due


@pytest.mark.long
async def test_a_schedule_continues_after_a_process_is_killed(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_URL", url)
    async with periodic_app.app as app, working(app, queues=["held"], processes=1):
        os.kill(await gate.arrived(TICK_ID), signal.SIGKILL)
        for _ in range(2):
            gate.expect_again(TICK_ID)
            await gate.arrived(TICK_ID)
            await gate.release(TICK_ID)
        await completed(app, "held", 2)

        assert ["stalled", "completed", "completed"] == (await event_kinds(app, "held", TICK_ID))[:3]


@pytest.mark.long
async def test_a_schedule_continues_after_a_supervisor_is_killed(app: Dibs, url: str, gate: Gate) -> None:
    async with program(url, "held", processes=1) as supervisor:
        pid = await gate.arrived(TICK_ID)
        supervisor.kill()
        await wait_for_exit(pid)
    gate.expect_again(TICK_ID)
    async with working(app, queues=["held"]):
        for _ in range(2):
            await gate.arrived(TICK_ID)
            await gate.release(TICK_ID)
        await completed(app, "held", 2)

        assert ["stalled", "completed", "completed"] == (await event_kinds(app, "held", TICK_ID))[:3]


# -- in one process ----------------------------------------------------------------------------------


class Script:
    """A periodic task whose runs return, raise or wait, one of `steps` each."""

    def __init__(self, app: Dibs, *steps: Any, **settings: Any) -> None:
        self.left = list(steps)
        self.done = asyncio.Event()
        self.here = asyncio.Event()
        app.task(queue="quick", every=INTERVAL / 1000, **settings)(periodic_app.quick)
        app.handlers["quick"] = evolve(app.handlers["quick"], function=self)

    async def __call__(self) -> Any:
        step = self.left.pop(0) if self.left else None
        if not self.left:
            self.done.set()
        if isinstance(step, Exception):
            raise step
        if step == "wait":
            self.here.set()
            await asyncio.Event().wait()
        return step

    async def wait_until_done(self) -> None:
        async with asyncio.timeout(20):
            await self.done.wait()


@pytest.fixture
async def memory() -> AsyncIterator[Dibs]:
    async with Dibs("memory:") as opened:
        yield opened


async def test_a_schedule_does_not_wait_for_the_backoff_of_a_retry(memory: Dibs) -> None:
    """The backoff is two minutes; the next tick comes earlier and replaces the retry."""
    script = Script(memory, ValueError("no"), ValueError("no"), "ok", backoff=Fixed(120))
    async with working(memory):
        await script.wait_until_done()
        await completed(memory, "quick", 1)

        assert ["retried", "retried", "completed"] == (await event_kinds(memory, "quick", TICK_ID))[:3]


async def test_a_schedule_continues_after_a_cancelled_run(
    memory: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "CHECK_EVERY", 0.05)
    script = Script(memory, "wait", "ok")
    async with working(memory, heartbeat=0.05):
        await script.here.wait()
        await memory.queue("quick").cancel(TICK_ID, running=True)
        await completed(memory, "quick", 1)

        assert ["cancelled", "completed"] == (await event_kinds(memory, "quick", TICK_ID))[:2]


async def test_a_schedule_continues_after_a_refused_result(memory: Dibs) -> None:
    script = Script(memory, "x" * (1 << 21), "ok")
    async with working(memory):
        await script.wait_until_done()
        await completed(memory, "quick", 1)

        assert ["failed", "completed"] == (await event_kinds(memory, "quick", TICK_ID))[:2]


async def test_a_check_that_failed_is_repeated(
    memory: Dibs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maintenance, "CHECK_EVERY", 0.02)
    Script(memory)
    async with faulty_storage(memory) as storage:
        storage.fail("get", OSError("away"))
        async with working(memory):
            await completed(memory, "quick", 1)

    assert "quick: enqueueing the next tick failed, trying again in a minute: away" in caplog.text


async def test_a_worker_until_empty_does_not_wait_for_ticks(memory: Dibs) -> None:
    memory.task(queue="quick", every="30d")(periodic_app.quick)
    await memory.get_task("quick").enqueue()
    async with working(memory, until="empty") as [task]:
        report = await asyncio.wait_for(task, 20)

    assert 1 == report.total("completed")
    assert "waiting" == (await memory.queue("quick").get(TICK_ID)).state  # type: ignore[union-attr]


async def test_a_worker_until_empty_waits_for_a_tick_that_is_retried(memory: Dibs) -> None:
    script = Script(memory, ValueError("no"), "ok", backoff=Fixed(0.3))
    memory.handlers["quick"] = evolve(memory.handlers["quick"], schedule=MONTHLY)
    await memory.get_task("quick").options(id=TICK_ID).enqueue()
    async with working(memory, until="empty") as [task]:
        report = await asyncio.wait_for(task, 20)

    assert ([], 1, 1) == (script.left, report.total("retried"), report.total("completed"))


async def test_the_tick_of_a_removed_declaration_does_not_run(memory: Dibs) -> None:
    memory.task(queue="quick")(periodic_app.quick)
    job = MONTHLY.job(TICK_ID, round(time.time() * 1000) - 1)
    await memory.storage.enqueue("quick", [EnqueueRequest(job=job)])
    async with working(memory, until="empty") as [task]:
        report = await asyncio.wait_for(task, 20)

    assert 0 == report.total("claimed")
    assert "cancelled" == (await memory.queue("quick").get(TICK_ID)).state  # type: ignore[union-attr]


async def test_a_tick_whose_schedule_cannot_be_read_waits(
    memory: Dibs, caplog: pytest.LogCaptureFixture
) -> None:
    memory.task(queue="quick")(periodic_app.quick)
    await memory.queue("quick").enqueue(
        {"args": [], "kwargs": {}}, id="schedule:a", attributes={"dibs.schedule": {"cron": "x"}}
    )
    async with working(memory, until="idle") as [task]:
        report = await asyncio.wait_for(task, 20)

    assert (1, 0) == (report.total("released"), report.total("completed"))
    assert "quick/schedule:a: the schedule of the job cannot be read" in caplog.text


async def test_a_worker_enqueues_ticks_of_its_own_queues_only(memory: Dibs) -> None:
    memory.task(queue="quick", every="30d")(periodic_app.quick)
    memory.task(queue="other")(periodic_app.held)
    async with working(memory, queues=["other"], until="empty") as [task]:
        await asyncio.wait_for(task, 20)

    assert await memory.queue("quick").get(TICK_ID) is None
