"""beequeue and bee-queue: jobs, retries, timeouts, delays, backoff, ids and what is kept of them."""

from __future__ import annotations

import asyncio

import pytest

from dibs import (
    BatchRefused,
    ConfigurationError,
    Dibs,
    DuplicateHandler,
    OutcomeNotKept,
    Queue,
    Refused,
    Reject,
    Retention,
)
from dibs.model.requests import Complete, RetryLater
from tests.lineage import actors
from tests.lineage.actors import claimed, play, told, work, working
from tests.lineage.clerk import Clerk

# -- a job and its end -------------------------------------------------------------------------------------


async def test_jobs_run_first_in_first_out(clerk: Clerk) -> None:
    for number in range(30):
        await clerk.put(f"{number:02}")

    assert [f"{number:02}" for number in range(30)] == [job.id for job in await clerk.claim()]


async def test_a_result_is_kept_and_told(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """Not only in a message that has to be caught: whoever asks later gets it."""
    play(queue)
    ticket = await queue.enqueue({"return": [1, None]})
    await work(app)

    assert [1, None] == await ticket.result(0)
    assert [1, None] == await queue.ticket(ticket.id, ticket.revision).result(0)


async def test_success_and_failure_are_kept_or_not_each_by_itself(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """Retention: seconds, None for ever, 0 not at all; of the job, else of the queue, else the default."""
    play(queue, max_retries=0)
    await queue.configure(retention=Retention(failed=None))
    await queue.enqueue(1, id="kept")
    await queue.enqueue({"fail": 1}, id="for ever")
    gone = await queue.enqueue(1, id="gone", retention=Retention(completed=0))
    await queue.enqueue({"fail": 1}, id="also gone", retention=Retention(failed=0))
    await work(app)

    kept, for_ever = await queue.get("kept"), await queue.get("for ever")
    assert kept is not None
    assert for_ever is not None
    assert (None, True) == (for_ever.expires_at, kept.expires_at is not None)
    assert (None, None) == (await queue.get("gone"), await queue.get("also gone"))
    with pytest.raises(OutcomeNotKept):
        await gone.result(0)


async def test_a_retried_job_goes_behind_what_waits(clerk: Clerk) -> None:
    """Contract 1, seq: a retry draws a fresh place in line, on every storage; a release keeps its own."""
    await clerk.put("a")
    run = await clerk.take()
    await clerk.put("b")
    await clerk.settle(run, RetryLater(delay=0))

    assert ["b", "a"] == [job.id for job in await clerk.claim()]


async def test_retries_are_counted_up_and_belong_to_the_job(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """max_retries=n is n extra runs; of the job, else of its handler; less than 0 is refused."""
    play(queue)
    await queue.enqueue({"fail": 9}, id="a", max_retries=2)
    await work(app)

    status = await queue.get("a")
    assert status is not None
    assert (3, 3, 2) == (len(stage.ran), status.attempts, status.retries)
    for bad in (-1, 1.5, "3", True):
        with pytest.raises(Refused):
            await queue.enqueue(1, max_retries=bad)  # type: ignore[arg-type]


async def test_a_timeout_belongs_to_the_job_and_stops_it(
    app: Dibs, queue: Queue, stage: actors.Stage
) -> None:
    """It fails with the time in its message, its handler is cancelled, and its late word does not count."""
    play(queue, max_timeouts=0)
    await queue.enqueue({"hold": True}, id="a", timeout=0.02)
    await work(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", "took longer than its timeout of 0.02 s") == (status.state, status.error.message)
    assert ["a stopped"] == stage.notes
    for bad in (-1, 0, "5"):
        with pytest.raises(Refused):
            await queue.enqueue(1, timeout=bad)  # type: ignore[arg-type]
    await queue.enqueue(1, timeout=None)


async def test_a_run_that_was_given_up_has_no_say(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """A `def` handler cannot be stopped: it loses its fence and its room, and what it returns is ignored."""
    stage.loop = asyncio.get_running_loop()
    play(queue, actors.act_plain, timeout=0.02, max_timeouts=0, size=100)
    ticket = await queue.enqueue({"hold": True}, id="a")
    await queue.enqueue(1, id="b")
    async with working(app):
        await told(queue, "completed")
        stage.go_plain.set()

    assert "failed" == (await ticket.status()).state
    assert ["a", "b"] == stage.ran


async def test_only_what_failed_is_retried_by_hand(queue: Queue) -> None:
    """With counts 0 and its data; every other state has its word, and nothing is pushed twice."""
    words = [await queue.retry_failed("a")]
    await queue.enqueue(7, id="a")
    words.append(await queue.retry_failed("a"))
    await (await claimed(queue)).fail("no")
    words += [await queue.retry_failed("a"), await queue.retry_failed("a")]
    claim = await claimed(queue)
    assert (7, 1, 0) == (claim.data, claim.attempt, claim.retries)
    await claim.complete()
    words.append(await queue.retry_failed("a"))

    assert ["not_found", "live", "queued", "live", "completed"] == words


async def test_removing_an_active_job_is_safe(queue: Queue) -> None:
    """Nothing of it stays in any list, its holder is told, and the id is free."""
    await queue.enqueue(1, id="a")
    claim = await claimed(queue)
    assert await queue.forget("a")
    ticket = await queue.enqueue(2, id="a")

    assert "queued" == ticket.verdict
    assert 0 == (await queue.counts()).active
    second = await claimed(queue)
    assert second.fence > claim.fence


async def test_progress_is_any_json_and_is_kept(app: Dibs, queue: Queue, stage: actors.Stage) -> None:
    """On the job, while it runs, for everyone; what JSON cannot say is refused."""
    play(queue)
    await queue.enqueue({"progress": {"done": [1, "of", 3]}, "hold": True}, id="a")
    async with working(app):
        await stage.arrived()
        status = await queue.get("a")
        assert status is not None
        assert {"done": [1, "of", 3]} == status.progress
        stage.go.set()
        await told(queue, "completed")

    await queue.enqueue(1, id="b")
    claim = await claimed(queue)
    await claim.progress(250)
    for bad in (float("nan"), object()):
        with pytest.raises(Refused):
            await claim.progress(bad)


# -- ids and batches ---------------------------------------------------------------------------------------


async def test_an_id_that_exists_is_answered_and_kept(queue: Queue) -> None:
    """Under Reject nothing is written, and the ticket still has its id and waits for what is there."""
    await queue.enqueue(1, id="a")
    again = await queue.enqueue(2, id="a", on_conflict=Reject())
    await (await claimed(queue)).complete("done")
    after = await queue.enqueue(3, id="a", on_conflict=Reject())

    assert [("a", "duplicate"), ("a", "completed")] == [(t.id, t.verdict) for t in (again, after)]
    assert ["done", "done"] == [await again.result(0), await after.result(0)]


async def test_many_are_saved_in_one_go(queue: Queue) -> None:
    """In order, over any number; each bad one is named with its place, and then nothing was sent."""
    tickets = await queue.enqueue_many(range(2100))
    with pytest.raises(BatchRefused) as refused:
        await queue.enqueue_many([1, object(), queue.bind(2, priority=5000)])

    assert sorted({ticket.revision for ticket in tickets}) == [ticket.revision for ticket in tickets]
    assert [1, 2] == [error.index for error in refused.value.exceptions if isinstance(error, Refused)]
    assert 2100 == (await queue.counts()).waiting


async def test_who_only_enqueues_has_no_handler(app: Dibs, queue: Queue) -> None:
    """And is no worker; who has one has exactly one for each queue."""
    await queue.enqueue(1)
    with pytest.raises(ConfigurationError, match="no handler"):
        await app.work()
    queue.handler(actors.act)
    with pytest.raises(DuplicateHandler):
        queue.handler(actors.act_plain)


async def test_a_claim_of_what_was_removed_is_not_made(clerk: Clerk) -> None:
    """Cancelled while it waits, it is in no line: the worker never meets an id without a record."""
    for id in "abc":
        await clerk.put(id)
    assert "cancelled" == await clerk.cancel("b")
    jobs = await clerk.claim()

    assert ["a", "c"] == [job.id for job in jobs]
    for job in jobs:
        await clerk.settle(job, Complete())
    assert 0 == (await clerk.storage.counts(["q"], now=clerk.now))["q"].active
