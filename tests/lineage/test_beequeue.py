"""beequeue and bee-queue: jobs, retries, timeouts, ids, batches and retention."""

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
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    claim_one,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)

# -- jobs and outcomes -------------------------------------------------------------------------------------


async def test_a_result_is_kept_and_told(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A later caller gets the result, too, without having received a message."""
    set_handler(queue)
    ticket = await queue.enqueue({"return": [1, None]})
    await run_until_empty(app)

    assert [1, None] == await ticket.result(0)
    assert [1, None] == await queue.ticket(ticket.id, ticket.revision).result(0)
    async with Dibs(app.url) as other:
        assert [1, None] == await other.queue("q").ticket(ticket.id, ticket.revision).result(0)


async def test_success_and_failure_are_kept_or_not_each_by_itself(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Retention is in seconds; None keeps the outcome forever, 0 keeps no outcome. The job overrides the
    queue.
    """
    set_handler(queue, max_retries=0)
    await queue.configure(retention=Retention(failed=None))
    await queue.enqueue(1, id="kept")
    await queue.enqueue({"fail": 1}, id="for ever")
    gone = await queue.enqueue(1, id="gone", retention=Retention(completed=0))
    await queue.enqueue({"fail": 1}, id="also gone", retention=Retention(failed=0))
    await run_until_empty(app)

    kept, for_ever = await queue.get("kept"), await queue.get("for ever")
    assert kept is not None
    assert for_ever is not None
    assert (None, True) == (for_ever.expires_at, kept.expires_at is not None)
    assert (None, None) == (await queue.get("gone"), await queue.get("also gone"))
    with pytest.raises(OutcomeNotKept):
        await gone.result(0)


async def test_retries_are_counted_up_and_belong_to_the_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """max_retries=n allows n more runs. The job overrides its handler. Negative values are refused."""
    set_handler(queue)
    await queue.enqueue({"fail": 9}, id="a", max_retries=2)
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert (3, 3, 2) == (len(record.ran), status.attempts, status.retries)
    for bad in (-1, 1.5, "3", True):
        with pytest.raises(Refused):
            await queue.enqueue(1, max_retries=bad)  # type: ignore[arg-type]


async def test_a_timeout_belongs_to_the_job_and_stops_it(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The error names the timeout, the handler is cancelled, and its late result is ignored."""
    set_handler(queue, max_timeouts=0)
    await queue.enqueue({"hold": True}, id="a", timeout=0.02)
    await run_until_empty(app)

    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert ("failed", "took longer than its timeout of 0.02 s") == (status.state, status.error.message)
    assert ["a stopped"] == record.notes
    for bad in (-1, 0, "5"):
        with pytest.raises(Refused):
            await queue.enqueue(1, timeout=bad)
    await queue.enqueue(1, timeout=None)


async def test_a_run_that_was_given_up_has_no_say(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A `def` handler cannot be stopped. Its fence and its capacity end, and its result is ignored.

    The timeout leaves a busy machine the time to start the thread of the handler.
    """
    record.loop = asyncio.get_running_loop()
    set_handler(queue, scripted_handlers.scripted_blocking, timeout=0.5, max_timeouts=0, size=100)
    ticket = await queue.enqueue({"hold": True}, id="a")
    await queue.enqueue(1, id="b")
    async with running_worker(app):
        await wait_for_event(queue, "completed")
        record.release_threads.set()

    assert "failed" == (await ticket.status()).state
    assert ["a", "b"] == record.ran


async def test_only_what_failed_is_retried_by_hand(queue: Queue) -> None:
    """The job keeps its data and starts with counts 0. Each other state has its own reply."""
    words = [await queue.retry_failed("a")]
    await queue.enqueue(7, id="a")
    words.append(await queue.retry_failed("a"))
    await (await claim_one(queue)).fail("no")
    words += [await queue.retry_failed("a"), await queue.retry_failed("a")]
    claim = await claim_one(queue)
    assert (7, 1, 0) == (claim.data, claim.attempt, claim.retries)
    await claim.complete()
    words.append(await queue.retry_failed("a"))

    assert ["not_found", "live", "queued", "live", "completed"] == words


async def test_removing_an_active_job_is_safe(queue: Queue) -> None:
    """The job is in no list, and its id can be enqueued again with a higher fence."""
    await queue.enqueue(1, id="a")
    claim = await claim_one(queue)
    assert await queue.forget("a")
    ticket = await queue.enqueue(2, id="a")

    assert "queued" == ticket.verdict
    assert 0 == (await queue.counts()).active
    second = await claim_one(queue)
    assert second.fence > claim.fence


async def test_progress_is_any_json_and_is_kept(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """Every client can read the progress during the run. Values outside of JSON are refused."""
    set_handler(queue)
    await queue.enqueue({"progress": {"done": [1, "of", 3]}, "hold": True}, id="a")
    async with running_worker(app):
        await record.wait_for_hold()
        status = await queue.get("a")
        assert status is not None
        assert {"done": [1, "of", 3]} == status.progress
        record.release.set()
        await wait_for_event(queue, "completed")

    await queue.enqueue(1, id="b")
    claim = await claim_one(queue)
    await claim.progress(250)
    for bad in (float("nan"), object()):
        with pytest.raises(Refused):
            await claim.progress(bad)


# -- ids and batches ---------------------------------------------------------------------------------------


async def test_an_id_that_exists_is_answered_and_kept(queue: Queue) -> None:
    """Reject writes no record, and the ticket refers to the existing job or outcome."""
    await queue.enqueue(1, id="a")
    again = await queue.enqueue(2, id="a", on_conflict=Reject())
    await (await claim_one(queue)).complete("done")
    after = await queue.enqueue(3, id="a", on_conflict=Reject())

    assert [("a", "duplicate"), ("a", "completed")] == [(t.id, t.verdict) for t in (again, after)]
    assert ["done", "done"] == [await again.result(0), await after.result(0)]


async def test_many_are_saved_in_one_go(queue: Queue) -> None:
    """Batches keep the order. A refused batch names the index of each bad job, and no job is sent."""
    tickets = await queue.enqueue_many(range(2100))
    with pytest.raises(BatchRefused) as refused:
        await queue.enqueue_many([1, object(), queue.bind(2, priority=5000)])

    assert sorted({ticket.revision for ticket in tickets}) == [ticket.revision for ticket in tickets]
    assert [1, 2] == [error.index for error in refused.value.exceptions if isinstance(error, Refused)]
    assert 2100 == (await queue.counts()).waiting


async def test_who_only_enqueues_has_no_handler(app: Dibs, queue: Queue) -> None:
    """An app without handlers cannot work. A queue has one handler."""
    await queue.enqueue(1)
    with pytest.raises(ConfigurationError, match="no handler"):
        await app.work()
    queue.handler(scripted_handlers.scripted)
    with pytest.raises(DuplicateHandler):
        queue.handler(scripted_handlers.scripted_blocking)
