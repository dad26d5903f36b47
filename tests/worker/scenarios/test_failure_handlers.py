"""A failure is handled at least once, even if worker processes are killed."""

from __future__ import annotations

import os
import signal

import pytest

from dibs.app import Dibs
from dibs.model.events import LogEvent
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, SettingsPatch, Settlement
from tests.worker.gate import Gate
from tests.worker.jobs import outcome, put, wait_for_count
from tests.worker.supervisors import on_all_storages, working


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


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
