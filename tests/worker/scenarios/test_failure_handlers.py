"""A failure is handled at least once, whenever the processes that do it are killed."""

from __future__ import annotations

import os
import signal

import pytest

from dibs.client.app import Dibs
from dibs.model.events import LogEvent
from dibs.model.job import Error
from dibs.model.requests import Complete, Fail, Settlement
from tests.worker.fleet import everywhere, working
from tests.worker.workshop import Gate, counted, outcome, put


@pytest.fixture
async def app(shared: Dibs) -> Dibs:
    return shared


async def surveyed(app: Dibs, queue: str = "frail!fail") -> list[LogEvent]:
    """What the log says of the fail jobs of a queue."""
    page = await app.storage.events(queue, limit=1000)
    return [event for _, event in page.events]


@everywhere
async def test_whose_process_is_killed_in_it_runs_again(app: Dibs, gate: Gate) -> None:
    await put(app, "frail", "a")
    async with working(app, "frail") as task:
        os.kill(await gate.arrived("survey"), signal.SIGKILL)
        gate.again("survey")
        await gate.arrived("survey")
        await gate.let_go("survey")
        await task

    assert ["stalled", "completed"] == [event.kind for event in await surveyed(app)]
    assert "failed" == (await outcome(app, "frail", "a")).kind


async def test_whose_process_is_killed_after_it_is_handled_nevertheless(app: Dibs, gate: Gate) -> None:
    await put(app, "frail", "a")
    async with working(app, "frail") as task:
        pid = await gate.arrived("survey")
        await gate.let_go_unseen("survey")
        os.kill(pid, signal.SIGKILL)
        # Whether it had ended by then is chance: it may run again.
        gate.again("survey")
        await gate.welcome("survey", task)
        await task

    assert 1 == [event.kind for event in await surveyed(app)].count("completed")


async def test_when_nobody_was_there_it_is_handled_later(app: Dibs, gate: Gate) -> None:
    """The end of the job and its fail job are one step, so there is no moment between them."""
    await put(app, "frail", "a")
    lease = (await app.storage.grant(["frail"], 60_000, "test")).lease
    [job] = (await app.storage.claim("frail", lease, 1)).jobs
    assert job.run is not None
    how = Fail(error=Error(type="Boom"), handled=True)
    await app.storage.settle("frail", [Settlement(id="a", fence=job.run.fence, action=how)])
    async with working(app, "frail") as task:
        await gate.arrived("survey")
        await gate.let_go("survey")
        await task

    assert ["completed"] == [event.kind for event in await surveyed(app)]


async def test_one_that_fails_for_good_is_kept_for_ever_and_shown(app: Dibs) -> None:
    await put(app, "hopeless", "a")
    async with working(app, "hopeless") as task:
        await task
    [(_, shown)] = (await app.storage.list("hopeless!fail", "failed", limit=10)).items

    assert shown.outcome is not None
    assert shown.outcome.error is not None
    assert ("not even this", None) == (shown.outcome.error.message, shown.outcome.expires_at)


@everywhere
async def test_a_run_handed_off_and_failed_from_elsewhere_is_handled(app: Dibs, gate: Gate) -> None:
    """By hand: claimed here, handed off, ended by who has only its id and revision."""
    queue = app.queue("frail")
    await put(app, "frail", "a", "b")
    revisions = {}
    async with queue.receive(max_jobs=2, lease=1) as claims:
        async for claim in claims:
            revisions[claim.id] = await claim.hand_off()
            if len(revisions) == 2:
                break
    async with working(app, "frail", until="stopped"):
        # Its lease is long over, and it is nobody's to bring back.
        assert [] == list(await app.storage.reap("frail", 10))
        assert "done" == await app.storage.finish(
            "frail", "a", Fail(error=Error(type="Elsewhere"), handled=True), revisions["a"]
        )
        assert "done" == await app.storage.finish("frail", "b", Complete(result=b"1"), revisions["b"])
        await gate.arrived("survey")
        await gate.let_go("survey")
        await counted(app, "frail!fail", "completed")

    assert ("failed", "completed") == tuple([(await outcome(app, "frail", id)).kind for id in "ab"])
