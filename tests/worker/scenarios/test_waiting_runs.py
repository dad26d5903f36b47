"""Runs that wait for other jobs and leave no capacity to start them: the log names them, and the way out."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import Dibs
from dibs.model.events import LogEvent
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, SettingsPatch, Settlement
from tests.worker.gate import Gate
from tests.worker.jobs import current, outcome, put, wait_for_count
from tests.worker.supervisors import TIMEOUT, on_all_storages, script, wait_for_log, working

APPLICATION = """
import time
from dibs import Dibs
from dibs.worker.dispatch import in_flight

in_flight.LOOK_EVERY = 0.1
app = Dibs()


@app.task(queue="child", queue_priority=1)
async def child():
    return 2


@app.task(queue="parent", size=50, timeout=3, max_timeouts=0)
async def parent():
    return await (await child.enqueue()).result()


@app.task(queue="blocking", size=50, max_retries=0)
def blocking():
    return child.sync.enqueue().result(wait=3)


@app.task(queue="alone", size=50, executor="process", timeout=15, max_timeouts=0)
async def alone():
    return await (await child.enqueue()).result()


@app.task(queue="busy", size=50)
def busy():
    time.sleep(3)
"""


def warnings_of(folder: Path, *queues: str) -> list[dict[str, Any]]:
    """Run a job of each queue in one process, and return the warnings about runs that wait."""
    (folder / "family.py").write_text(APPLICATION)
    url = f"file:{folder}/jobs"
    asyncio.run(enqueue(url, *queues))
    words = ["worker", "family:app", "--processes", "1", "--until", "empty", "--url", url]
    done = subprocess.run(
        [sys.executable, "-m", "dibs", *words],
        cwd=folder, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    return [line for line in lines if line["level"] == "WARNING" and "wait for other jobs" in line["message"]]


async def enqueue(url: str, *queues: str) -> None:
    async with Dibs(url) as app:
        for queue in queues:
            await app.queue(queue).enqueue({"args": [], "kwargs": {}})


@pytest.mark.parametrize("kind", ["parent", "blocking", "alone"])
def test_runs_that_wait_and_fill_a_process_are_named(tmp_path: Path, kind: str) -> None:
    (warning,) = warnings_of(tmp_path, kind, kind)

    assert f"{kind} (family.{kind}): 2 runs with 100 units" in warning["message"]
    assert "capacity of 100 units" in warning["message"]
    assert "make a flow" in warning["message"]
    assert [kind] == warning["queues"]


@pytest.mark.parametrize("queues", [("parent", "busy"), ("busy", "busy"), ("parent",)])
def test_a_process_with_a_run_that_works_or_room_for_one_is_not_named(
    tmp_path: Path, queues: tuple[str, ...]
) -> None:
    assert [] == warnings_of(tmp_path, *queues)


# -- The leases of a receiver whose process is killed ------------------------------------------------


#: A program that claims one job in each of three queues, under leases that expire soon unless renewed.
HOLDER = """
import asyncio, sys
from dibs.client.receiver import Receiver
from tests.worker.apps import app

renewed, renew = asyncio.Event(), Receiver._renew_lease


async def renew_and_notify(self, storage, held):
    await renew(self, storage, held)
    if self._client.name == "own" and held.claims:
        renewed.set()


Receiver._renew_lease = renew_and_notify


async def hold(queue, extend_by, held):
    async with app.queue(queue).receive(lease=0.5) as claims:
        claim = await anext(claims)
        if extend_by:
            await claim.extend(extend_by)
        held.release()
        await asyncio.Event().wait()


async def main():
    async with app, asyncio.TaskGroup() as group:
        held = asyncio.Semaphore(0)
        for queue, extend_by in (("plain", 0), ("extended", 3600), ("own", 0)):
            group.create_task(hold(queue, extend_by, held))
        for _ in range(3):
            await held.acquire()
        await renewed.wait()
        print("held", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


@on_all_storages
async def test_a_killed_holder_loses_its_jobs_with_their_leases(app: Dibs, tmp_path: Path) -> None:
    """The receiver's lease expires soon; an extended lease, or one that the job sets, lasts longer."""
    for queue in ("plain", "extended"):
        await app.queue(queue).enqueue(1, id="a")
    await app.queue("own").enqueue(1, id="a", lease=3600)
    async with script(tmp_path, HOLDER) as holder:
        await wait_for_log(holder, "held")
    async with asyncio.timeout(TIMEOUT), app.queue("plain").receive(lease=0.5) as claims:
        claim = await anext(claims)
        assert 1 == claim.stalls
        await claim.complete()

    for queue in ("extended", "own"):
        assert [] == list(await app.storage.reap(queue, 10))
        assert (await current(app, queue, "a")).run is not None


# -- A failure is handled at least once, even if worker processes are killed -------------------------


async def fail_events(app: Dibs, queue: str = "frail!fail") -> list[LogEvent]:
    """Return the events of a fail queue."""
    page = await app.storage.events(queue, limit=1000)
    return [event for _, event in page.events]


@on_all_storages
async def test_a_handler_whose_process_is_killed_during_its_run_runs_again(app: Dibs, gate: Gate) -> None:
    await put(app, "frail", "a")
    async with working(app, "frail") as task:
        os.kill(await gate.arrived("survey"), signal.SIGKILL)
        gate.expect_again("survey")
        await gate.arrived("survey")
        await gate.release("survey")
        await task

    assert ["stalled", "completed"] == [event.kind for event in await fail_events(app)]
    assert "failed" == (await outcome(app, "frail", "a")).kind


async def test_a_failure_is_handled_once_if_the_process_is_killed_after_the_run(
    app: Dibs, gate: Gate
) -> None:
    await put(app, "frail", "a")
    async with working(app, "frail") as task:
        pid = await gate.arrived("survey")
        await gate.release_without_waiting("survey")
        os.kill(pid, signal.SIGKILL)
        # The process may have died before it settled the run; then the handler runs again.
        gate.expect_again("survey")
        await gate.release_if_it_arrives("survey", task)
        await task

    assert 1 == [event.kind for event in await fail_events(app)].count("completed")


async def test_a_failure_without_a_worker_is_handled_later(app: Dibs, gate: Gate) -> None:
    """The end of the job and its fail job are one step, so no crash can separate them."""
    await app.storage.configure("frail", SettingsPatch(fail_handler=True))
    await put(app, "frail", "a")
    lease = (await app.storage.grant(["frail"], 60_000, "test")).lease
    [job] = (await app.storage.claim("frail", lease, 1)).jobs
    assert job.run is not None
    action = Fail(error=Error(type="Boom"))
    await app.storage.settle("frail", [Settlement(id="a", fence=job.run.fence, action=action)])
    async with working(app, "frail") as task:
        await gate.arrived("survey")
        await gate.release("survey")
        await task

    assert ["completed"] == [event.kind for event in await fail_events(app)]


async def test_a_failed_fail_job_is_kept_without_expiry(app: Dibs) -> None:
    await put(app, "hopeless", "a")
    async with working(app, "hopeless") as task:
        await task
    [(_, shown)] = (await app.storage.list("hopeless!fail", "failed", limit=10)).items

    assert shown.outcome is not None
    assert shown.outcome.error is not None
    assert ("not even this", None) == (shown.outcome.error.message, shown.outcome.expires_at)


@on_all_storages
async def test_a_handed_off_run_that_is_failed_by_its_revision_is_handled(app: Dibs, gate: Gate) -> None:
    """A receiver claims the run and hands it off; a call with only its id and revision ends it."""
    queue = app.queue("frail")
    await put(app, "frail", "a", "b")
    revisions = {}
    async with queue.receive(max_jobs=2, lease=1) as claims:
        async for claim in claims:
            revisions[claim.id] = await claim.hand_off()
            if len(revisions) == 2:
                break
    async with working(app, "frail", until="stopped"):
        # Its lease has expired, but a handed-off run is under no lease and is not reaped.
        assert [] == list(await app.storage.reap("frail", 10))
        assert "done" == await app.storage.finish(
            "frail", "a", Fail(error=Error(type="Elsewhere")), revisions["a"]
        )
        assert "done" == await app.storage.finish("frail", "b", Complete(result=b"1"), revisions["b"])
        await gate.arrived("survey")
        await gate.release("survey")
        await wait_for_count(app, "frail!fail", "completed")

    assert ("failed", "completed") == tuple([(await outcome(app, "frail", id)).kind for id in "ab"])
