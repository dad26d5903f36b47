"""@platformatic/job-queue: enqueue, wait, cancel, results and errors by id."""

from __future__ import annotations

import asyncio

import pytest

from dibs import (
    Dibs,
    Immediate,
    JobCancelled,
    JobFailed,
    OutcomeNotKept,
    Queue,
    Reject,
    WaitTimeout,
    content_id,
)
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    claim_one,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)

# -- enqueue -----------------------------------------------------------------------------------------------


async def test_an_enqueue_says_what_it_found(queue: Queue) -> None:
    """Verdicts of Reject: queued, duplicate for a live job, completed; and failed with failed=True."""
    words = []
    for end in ("complete", "fail"):
        words.append((await queue.enqueue(1, id=end, on_conflict=Reject())).verdict)
        words.append((await queue.enqueue(2, id=end, on_conflict=Reject())).verdict)
        claim = await claim_one(queue)
        words.append((await queue.enqueue(3, id=end, on_conflict=Reject())).verdict)
        await (claim.complete("one") if end == "complete" else claim.fail("no"))
        words.append((await queue.enqueue(4, id=end, on_conflict=Reject(failed=True))).verdict)

    assert ["queued", "duplicate", "duplicate", "completed"] == words[:4]
    assert ["queued", "duplicate", "duplicate", "failed"] == words[4:]
    assert "queued" == (await queue.enqueue(5, id="fail", on_conflict=Reject())).verdict


async def test_what_waits_for_its_retry_is_a_duplicate_and_can_be_cancelled(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    await (await claim_one(queue)).retry(delay=60)

    assert "duplicate" == (await queue.enqueue(2, id="a", on_conflict=Reject())).verdict
    assert "cancelled" == await queue.cancel("a")


async def test_a_result_of_none_is_a_result(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A handler that returns None completes its job, its waiters get None, and Reject finds the outcome."""
    set_handler(queue, scripted_handlers.return_none)
    ticket = await queue.enqueue(1, id="a")
    async with running_worker(app):
        assert await ticket.result(scripted_handlers.TIMEOUT) is None
    again = await queue.enqueue(2, id="a", on_conflict=Reject())

    assert ("completed", None) == (again.verdict, await again.result(0))
    status = await queue.get("a")
    assert status is not None
    assert ("completed", 1, 0) == (status.state, status.attempts, status.retries)


@pytest.mark.parametrize("value", [None, 0, False, "", [], {}])
async def test_a_falsy_result_is_a_result(queue: Queue, value: object) -> None:
    ticket = await queue.enqueue(1)
    await (await claim_one(queue)).complete(value)

    assert value == await ticket.result(0)
    assert (type(value), value) == (type(await ticket.result(0)), value)


async def test_equal_work_has_an_equal_id(queue: Queue) -> None:
    """The order of keys does not matter; different values have different ids."""
    one, other = {"a": 1, "b": [2]}, {"b": [2], "a": 1}
    first = await queue.enqueue(one, id=content_id(one))
    second = await queue.enqueue(other, id=content_id(other), on_conflict=Reject())

    assert (first.id, "duplicate") == (second.id, second.verdict)
    assert content_id(1) != content_id("1")


# -- request and response ----------------------------------------------------------------------------------


async def test_run_enqueues_and_waits(app: Dibs, record: scripted_handlers.HandlerRecord) -> None:
    task = app.task(scripted_handlers.double)
    async with running_worker(app):
        assert 42 == await task.options(wait=scripted_handlers.TIMEOUT).enqueue_and_wait(21)
        assert [2, 4, 6] == await asyncio.gather(*(task.enqueue_and_wait(number) for number in (1, 2, 3)))


async def test_a_wait_that_is_over_leaves_the_job_alone(queue: Queue) -> None:
    """WaitTimeout is a TimeoutError. The job continues, and a second wait gets its result."""
    ticket = await queue.enqueue(1, id="a")
    with pytest.raises(WaitTimeout) as over:
        await ticket.result(0)
    assert isinstance(over.value, TimeoutError)
    await (await claim_one(queue)).complete("late")

    assert "late" == await ticket.result(0)


async def test_a_waiter_hears_of_a_failure_and_what_it_was(
    app: Dibs, record: scripted_handlers.HandlerRecord
) -> None:
    """A retry does not end the wait. After the failure, result() raises at once, with the error as data."""
    task = app.task(max_retries=1, backoff=Immediate())(scripted_handlers.always_failing)
    async with running_worker(app):
        with pytest.raises(JobFailed) as failed:
            await task.options(id="a", wait=scripted_handlers.TIMEOUT).enqueue_and_wait(5)
    again = await task.options(id="a", on_conflict=Reject(failed=True)).enqueue(5)
    with pytest.raises(JobFailed):
        await again.result(0)

    assert (task.queue.name, "a") == (failed.value.queue, failed.value.id)
    assert ("ValueError", "not 5") == (failed.value.error.type, failed.value.error.message)
    assert "failed permanently after 2 attempts: ValueError: not 5" in str(failed.value)


@pytest.mark.parametrize("state", ["waiting", "blocked", "active"])
async def test_a_waiter_hears_of_a_cancel(queue: Queue, state: str) -> None:
    """The wait raises JobCancelled at once."""
    ticket = await queue.enqueue(1, id="a")
    claim = await claim_one(queue) if state != "waiting" else None
    if state == "blocked":
        ticket = await queue.enqueue(2, id="a")
    waiting = asyncio.ensure_future(ticket.result(scripted_handlers.TIMEOUT))
    await asyncio.sleep(0)
    await queue.cancel("a", running=state == "active")
    if claim and state == "active":
        await claim.release()

    with pytest.raises(JobCancelled):
        await waiting


async def test_two_waiters_of_one_id_do_not_disturb_each_other(queue: Queue) -> None:
    """One wait times out and one is cancelled; the third gets the result."""
    ticket = await queue.enqueue(1, id="a")
    hasty, cancelled, patient = (asyncio.ensure_future(ticket.result(wait)) for wait in (0.02, 60, 60))
    with pytest.raises(WaitTimeout):
        await hasty
    cancelled.cancel()
    await (await claim_one(queue)).complete("done")

    async with asyncio.timeout(scripted_handlers.TIMEOUT):
        assert "done" == await patient


async def test_one_may_wait_for_what_is_active_or_has_ended(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")
    claim = await claim_one(queue)
    duplicate = await queue.enqueue(2, id="a", on_conflict=Reject())
    waiting = asyncio.ensure_future(duplicate.result(scripted_handlers.TIMEOUT))
    await asyncio.sleep(0)
    await claim.complete("one")

    assert "one" == await waiting
    assert "one" == await ticket.result(0)


async def test_what_nobody_keeps_is_told_as_such(queue: Queue) -> None:
    """For an unknown id and an outcome that is not kept, result() raises OutcomeNotKept."""
    ticket = await queue.enqueue(1, retention=0)
    await (await claim_one(queue)).complete(1)
    with pytest.raises(OutcomeNotKept):
        await ticket.result(0)
    with pytest.raises(OutcomeNotKept):
        await queue.ticket("unknown", 5).result(0)


# -- cancel ------------------------------------------------------------------------------------------------


async def test_cancel_then_enqueue_runs_once(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Contract 3, cancel: the queued job is removed."""
    set_handler(queue)
    first = await queue.enqueue(1, id="a")
    assert "cancelled" == await queue.cancel("a")
    second = await queue.enqueue(2, id="a")
    with pytest.raises(JobCancelled):
        await first.result(0)
    await run_until_empty(app)

    assert (["a"], 2) == (record.ran, await second.result(0))


async def test_a_running_job_can_be_asked_to_stop(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """With running=True the job is cancelled, with its handler; otherwise the run continues."""
    set_handler(queue)
    ticket = await queue.enqueue({"hold": True}, id="a")
    async with running_worker(app, heartbeat=0.02, lease=5):
        await record.wait_for_hold()
        assert "active" == await queue.cancel("a")
        assert "requested" == await queue.cancel("a", running=True)
        await wait_for_event(queue, "cancelled")

    assert ["a stopped"] == record.notes
    assert [True] == [job.cancelled for job in record.jobs]
    with pytest.raises(JobCancelled):
        await ticket.result(0)
