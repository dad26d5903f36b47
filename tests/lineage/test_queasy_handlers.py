"""queasy: outcomes of handlers, limits, retries and failure handlers."""

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
from dibs.client.calls.handler import PROCESS_UNITS, HandlerLimits
from dibs.errors import UnknownTask
from dibs.model.requests import RetryLater, Settlement
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import run_until_empty, running_worker, set_handler, wait_for_event


async def stalled(app: Dibs, queue: str, times: int) -> None:
    """Settle a due job as stalled, as a supervisor does for the runs of a dead process."""
    lease = (await app.storage.grant([queue], 60_000, "died")).lease
    for _ in range(times):
        [job] = (await app.storage.claim(queue, lease, 1)).jobs
        assert job.run is not None
        how = RetryLater(delay=0, cause="stall")
        await app.storage.settle(queue, [Settlement(id=job.id, fence=job.run.fence, action=how)])


# -- defaults --------------------------------------------------------------------------------------------


def test_the_defaults_of_a_handler(queue: Queue, app: Dibs) -> None:
    """Timeout 60 s, 10 retries, 3 timeouts, 3 stalls, backoff from 2 s to 5 min, priority 100, and for a
    `def` size 10 of 100. For an `async def` it is 1.
    """
    queue.handler(scripted_handlers.scripted_blocking)
    handler = app.handlers["q"]
    app.queue("async").handler(scripted_handlers.scripted)

    assert (60_000, 10, 3, 3) == (
        handler.limits.timeout,
        handler.limits.max_retries,
        handler.limits.max_timeouts,
        handler.limits.max_stalls,
    )
    assert (Exponential(2, 300), False) == (handler.limits.backoff, Exponential().jitter)
    assert (10, 100, 100) == (handler.size, handler.queue_priority, PROCESS_UNITS)
    assert 1 == app.handlers["async"].size


def test_a_failure_handler_has_limits_of_its_own(queue: Queue, app: Dibs) -> None:
    """A failure handler has the options of any handler. By default, it is retried for 26 hours."""
    queue.handler(max_retries=0)(scripted_handlers.scripted)
    queue.on_failure(
        max_retries=100, max_stalls=3, backoff=Exponential(10, 900), size=2, timeout=60, queue_priority=100
    )(scripted_handlers.failure_handler)

    expected = HandlerLimits(max_retries=100, max_timeouts=110, backoff=Exponential(10, 900))
    assert expected == app.handlers["q!fail"].limits
    assert (2, 100) == (app.handlers["q!fail"].size, app.handlers["q!fail"].queue_priority)
    assert 0 == app.handlers["q"].limits.max_retries


@pytest.mark.parametrize(
    "settings",
    [{"max_retries": -1}, {"max_stalls": 1.5}, {"timeout": 0}, {"timeout": -1}, {"size": 0}, {"size": 101}],
)
def test_a_limit_that_is_none_is_refused(queue: Queue, settings: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        queue.handler(**settings)(scripted_handlers.scripted)


# -- outcomes and retries --------------------------------------------------------------------------------


async def test_what_a_handler_returns_ends_its_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    set_handler(queue)
    ticket = await queue.enqueue({"to": "x"})
    await run_until_empty(app)

    assert {"to": "x"} == await ticket.result(0)


async def returns_an_object(data: Any) -> object:
    return object()


async def test_a_result_that_cannot_be_stored_is_success(app: Dibs, queue: Queue) -> None:
    set_handler(queue, returns_an_object)
    for retention in (0, 3600):
        await queue.enqueue({}, id=f"kept for {retention}", retention=retention)
    await run_until_empty(app)

    assert ["completed", "completed"] == [
        event.kind for event in await scripted_handlers.read_events(queue, 2)
    ]


async def test_a_limit_of_n_allows_n_retries(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job with max_retries=n runs n + 1 times."""
    set_handler(queue, max_retries=3)
    await queue.enqueue({"fail": 99}, id="a")
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ([1, 2, 3, 4], "error") == (record.attempts, status.error.kind)
    assert ["retried"] * 3 + ["failed"] == [
        event.kind for event in await scripted_handlers.read_events(queue, 4)
    ]


async def test_a_job_that_stalled_more_often_than_allowed_is_not_run(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """After max_stalls, the next claim ends the job without a run."""
    set_handler(queue, max_stalls=1)
    await queue.enqueue(1, id="once")
    await stalled(app, "q", 1)
    await run_until_empty(app)
    await queue.enqueue(1, id="twice")
    await stalled(app, "q", 2)
    await run_until_empty(app)

    status = await queue.get("twice")
    assert ["once"] == record.ran
    assert status is not None
    assert status.error is not None
    assert ("failed", 2, 0) == (status.state, status.stalls, status.retries)
    assert ("TooManyStalls", "stall") == (status.error.type, status.error.kind)


@pytest.mark.parametrize(("before", "seconds"), [(0, 2), (1, 4), (3, 16), (12, 300)])
async def test_each_pause_is_twice_the_one_before_up_to_the_cap(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, before: int, seconds: int
) -> None:
    """With Exponential(2, 300) the first retry waits 2 s, and no retry waits more than 300 s."""
    set_handler(queue, backoff=Exponential(2, 300), max_retries=None)
    await queue.enqueue({"fail": 99}, id="a")
    async with queue.receive(wait=0) as claims:
        for _ in range(before):
            await (await anext(claims)).retry(delay=0)
    async with running_worker(app):
        event = await wait_for_event(queue, "retried", before + 1)

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert event.finished_at is not None
    assert seconds == (status.run_at - event.finished_at).total_seconds()


@pytest.mark.parametrize("script", [{"permanent": True}, {"error_attributes": {"kind": "permanent"}}])
async def test_a_permanent_error_is_not_retried(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, script: dict[str, Any]
) -> None:
    """PermanentError, or the attribute `kind` of any exception, ends the job."""
    set_handler(queue)
    await queue.enqueue(script, id="a")
    await run_until_empty(app)

    assert (["a"], "failed") == (record.ran, (await scripted_handlers.read_events(queue, 1))[0].kind)


@pytest.mark.parametrize("again", [0, 50])
async def test_a_time_that_the_handler_names_takes_the_place_of_the_backoff(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord, again: int
) -> None:
    """Retry(delay=...) can be shorter or longer than the backoff, also above its cap."""
    set_handler(queue, backoff=Exponential(2, 20))
    await queue.enqueue({"retry_delay": again}, id="a")
    async with running_worker(app):
        event = await wait_for_event(queue, "retried")
        if again == 0:
            await wait_for_event(queue, "completed")

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert event.finished_at is not None
    assert again == (status.run_at - event.finished_at).total_seconds()


async def test_retry_at_counts_on_any_exception(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    set_handler(queue)
    await queue.enqueue({"error_attributes": {"retry_at": 4_000_000_000}}, id="a")
    async with running_worker(app):
        await wait_for_event(queue, "retried")

    status = await queue.get("a")
    assert status is not None
    assert status.run_at is not None
    assert 4_000_000_000 == status.run_at.timestamp()


async def test_a_handler_sees_its_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The handler can read id, data, attempt, counts and run_at of its job."""
    set_handler(queue)
    await queue.enqueue({"fail": 2}, id="a", attributes={"who": "me"})
    await stalled(app, "q", 1)
    await run_until_empty(app)

    job = record.jobs[-1]
    assert ("q", "a", 3, 1, 1, 0) == (job.queue, job.id, job.attempt, job.retries, job.stalls, job.timeouts)
    assert {"who": "me"} == job.attributes
    assert 0 <= (job.run_at - job.enqueued_at).total_seconds() < scripted_handlers.TIMEOUT


async def test_a_handler_that_cannot_be_called_is_an_error_at_import(app: Dibs, queue: Queue) -> None:
    """A wrong handler is refused when it is declared, not when a job runs."""
    with pytest.raises(BadHandler):
        queue.handler(lambda data: data)
    with pytest.raises(UnknownTask):
        await app.work(queues=["q"])
    with pytest.raises(ConfigurationError, match="no handler"):
        await app.work()
    queue.handler(scripted_handlers.scripted)
    with pytest.raises(DuplicateHandler):
        queue.handler(scripted_handlers.scripted_blocking)


async def test_limits_act_on_what_is_queued_already(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The limits of the worker's handler apply, unless the job has its own."""
    await queue.enqueue({"fail": 9}, id="plain")
    await queue.enqueue({"fail": 9}, id="own", max_retries=2)
    set_handler(queue, max_retries=0)
    await run_until_empty(app)

    assert (1, 3) == (record.ran.count("plain"), record.ran.count("own"))
