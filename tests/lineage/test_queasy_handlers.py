"""queasy: from what a handler did to what becomes of its job; limits, comebacks, fail jobs, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from dibs import (
    BadHandler,
    ConfigurationError,
    Dibs,
    DuplicateHandler,
    Exponential,
    Queue,
    Refused,
)
from dibs.client.calls.handler import HandlerLimits
from dibs.errors import UnknownTask
from dibs.model.requests import RetryLater, Settlement
from dibs.worker.dispatch.fairness import UNITS
from tests.lineage import actors
from tests.lineage.actors import play, told, work, working
from tests.lineage.clerk import fence_of


async def stalled(app: Dibs, queue: str, times: int) -> None:
    """Let the job that is due stall, as a supervisor settles the runs of a process that died."""
    lease = (await app.storage.grant([queue], 60_000, "died")).lease
    for _ in range(times):
        [job] = (await app.storage.claim(queue, lease, 1)).jobs
        how = RetryLater(delay=0, cause="stall")
        await app.storage.settle(queue, [Settlement(id=job.id, fence=fence_of(job), action=how)])


# -- defaults --------------------------------------------------------------------------------------------


def test_the_defaults_of_a_handler(queue: Queue, app: Dibs) -> None:
    """60 s, 10 retries, 3 timeouts, 3 stalls, 2 s doubling to 5 min, size 10 of 100, priority 100."""
    queue.handler(actors.act)
    handler = app.handlers["q"]

    assert (60_000, 10, 3, 3) == (
        handler.limits.timeout,
        handler.limits.max_retries,
        handler.limits.max_timeouts,
        handler.limits.max_stalls,
    )
    assert (Exponential(2, 300), False) == (handler.limits.backoff, Exponential().jitter)
    assert (10, 100, 100) == (handler.size, handler.queue_priority, UNITS)


def test_a_failure_handler_has_limits_of_its_own(queue: Queue, app: Dibs) -> None:
    """Whatever its queue's are; the same defaults as any handler, and the same words to change them."""
    queue.handler(max_retries=0)(actors.act)
    queue.on_failure(
        max_retries=100, max_stalls=3, backoff=Exponential(10, 900), size=2, timeout=60, queue_priority=100
    )(actors.tell)

    assert HandlerLimits(max_retries=100, backoff=Exponential(10, 900)) == app.handlers["q!fail"].limits
    assert (2, 100) == (app.handlers["q!fail"].size, app.handlers["q!fail"].queue_priority)
    assert 0 == app.handlers["q"].limits.max_retries


@pytest.mark.parametrize(
    "settings",
    [{"max_retries": -1}, {"max_stalls": 1.5}, {"timeout": 0}, {"timeout": -1}, {"size": 0}, {"size": 101}],
)
def test_a_limit_that_is_none_is_refused(queue: Queue, settings: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        queue.handler(**settings)(actors.act)


# -- ends and comebacks ----------------------------------------------------------------------------------


async def test_what_a_handler_returns_ends_its_job(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    play(queue)
    ticket = await queue.enqueue({"to": "x"})
    await work(app)

    assert {"to": "x"} == await ticket.result(0)


async def test_a_limit_of_n_allows_n_retries(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """So n + 1 runs."""
    play(queue, max_retries=3)
    await queue.enqueue({"fail": 99}, id="a")
    await work(app)

    assert [1, 2, 3, 4] == stage.attempts
    assert ["retried"] * 3 + ["failed"] == [event.kind for event in await actors.read(queue, 4)]


async def test_a_job_that_stalled_more_often_than_allowed_is_not_run(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Stalls count, have a budget of their own, and one that exceeds it ends the job without a run."""
    play(queue, max_stalls=1)
    await queue.enqueue(1, id="once")
    await stalled(app, "q", 1)
    await work(app)
    await queue.enqueue(1, id="twice")
    await stalled(app, "q", 2)
    await work(app)

    status = await queue.get("twice")
    assert ["once"] == stage.ran
    assert status is not None
    assert status.error is not None
    assert ("failed", 2, 0, "TooManyStalls") == (
        status.state,
        status.stalls,
        status.retries,
        status.error.type,
    )


@pytest.mark.parametrize(("before", "seconds"), [(0, 2), (1, 4), (3, 16), (12, 300)])
async def test_each_pause_is_twice_the_one_before_up_to_the_cap(
    app: Dibs, queue: Queue, stage: actors.Stage, before: int, seconds: int
) -> None:
    """Exponential(2, 300): the first comeback waits 2 s, none more than 300 s."""
    play(queue, backoff=Exponential(2, 300), max_retries=None)
    await queue.enqueue({"fail": 99}, id="a")
    async with queue.receive(wait=0) as claims:
        for _ in range(before):
            await (await anext(claims)).retry(delay=0)
    async with working(app):
        event = await told(queue, "retried", before + 1)

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert event.finished_at is not None
    assert seconds == (status.run_at - event.finished_at).total_seconds()


@pytest.mark.parametrize("script", [{"permanent": True}, {"moody": {"kind": "permanent"}}])
async def test_a_permanent_error_is_not_retried(
    app: Dibs, queue: Queue, stage: actors.Stage, script: dict[str, Any]
) -> None:
    """By its type, or by the attribute `kind` of any exception."""
    play(queue)
    await queue.enqueue(script, id="a")
    await work(app)

    assert (["a"], "failed") == (stage.ran, (await actors.read(queue, 1))[0].kind)


@pytest.mark.parametrize("again", [0, 50])
async def test_a_time_that_the_handler_names_takes_the_place_of_the_backoff(
    app: Dibs, queue: Queue, stage: actors.Stage, again: int
) -> None:
    """Earlier as well as later, and beyond the cap."""
    play(queue, backoff=Exponential(2, 20))
    await queue.enqueue({"again": again}, id="a")
    async with working(app):
        event = await told(queue, "retried")
        if again == 0:
            await told(queue, "completed")

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert event.finished_at is not None
    assert again == (status.run_at - event.finished_at).total_seconds()


async def test_retry_at_counts_on_any_exception(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    play(queue)
    await queue.enqueue({"moody": {"retry_at": 4_000_000_000}}, id="a")
    async with working(app):
        await told(queue, "retried")

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert 4_000_000_000 == status.run_at.timestamp()


async def test_a_handler_sees_its_job(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Its id, data and attempt, its counts, and the time for which it was enqueued."""
    play(queue)
    await queue.enqueue({"fail": 2}, id="a", attributes={"who": "me"})
    await stalled(app, "q", 1)
    await work(app)

    job = stage.jobs[-1]
    assert ("q", "a", 3, 1, 1, 0) == (job.queue, job.id, job.attempt, job.retries, job.stalls, job.timeouts)
    assert {"who": "me"} == job.attributes
    assert 0 <= (job.run_at - job.enqueued_at).total_seconds() < actors.SOON


async def test_a_handler_that_cannot_be_called_is_an_error_at_import(app: Dibs, queue: Queue) -> None:
    """Nothing is left to be found out by a job."""
    with pytest.raises(BadHandler):
        queue.handler(lambda data: data)
    with pytest.raises(UnknownTask):
        await app.work(queues=["q"])
    with pytest.raises(ConfigurationError, match="no handler"):
        await app.work()
    queue.handler(actors.act)
    with pytest.raises(DuplicateHandler):
        queue.handler(actors.act_plain)


async def test_limits_act_on_what_is_queued_already(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """They live at the listener, unless a job brings its own."""
    await queue.enqueue({"fail": 9}, id="plain")
    await queue.enqueue({"fail": 9}, id="own", max_retries=2)
    play(queue, max_retries=0)
    await work(app)

    assert (1, 3) == (stage.ran.count("plain"), stage.ran.count("own"))
