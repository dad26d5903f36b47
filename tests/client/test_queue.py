"""Queues: enqueue, claims, status, cancel, amend, settings, prune."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from dibs import (
    BadHandler,
    BatchRefused,
    Dibs,
    Ending,
    Exponential,
    MessagePackSerde,
    Queue,
    Refused,
    Retention,
    Update,
    WaitTimeout,
)
from dibs.client.connection.call_limits import MAX_STARTS
from dibs.model.limits import MIB
from dibs.model.requests import EnqueueRequest
from tests.client import handlers
from tests.client.manual_claims import claimed


async def listed(queue: Queue, state: Any) -> list[str]:
    return [status.id async for status in queue.list(state)]


async def test_an_enqueue_says_what_it_did(queue: Queue) -> None:
    first = await queue.enqueue({"to": "x"}, id="a")
    second = await queue.enqueue({"to": "y"}, id="a")
    async with claimed(queue) as claim:
        third = await queue.enqueue({"to": "z"}, id="a")

        assert claim.data == {"to": "y"}
    assert [ticket.verdict for ticket in (first, second, third)] == ["queued", "updated", "blocked"]


async def test_an_update_may_take_only_the_later_time(queue: Queue) -> None:
    await queue.enqueue(1, id="a", delay=60)
    before = await queue.get("a")
    await queue.enqueue(2, id="a", delay=10, on_conflict=Update(data=False, run_at="later"))

    after = await queue.get("a")
    assert before is not None
    assert after is not None
    assert after.run_at == before.run_at


def counted(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many requests each call of the storage brings from now on."""
    calls: list[int] = []
    enqueue = app.storage.enqueue

    async def counting(name: str, requests: list[EnqueueRequest]) -> Any:
        calls.append(len(requests))
        return await enqueue(name, requests)

    monkeypatch.setattr(app.storage, "enqueue", counting)
    return calls


async def test_single_enqueues_of_one_moment_are_one_call(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(app, monkeypatch)

    tickets = await asyncio.gather(*(queue.enqueue(n, id=str(n)) for n in range(200)))

    assert [ticket.id for ticket in tickets] == [str(n) for n in range(200)]
    assert calls == [200]


async def test_a_bad_single_never_reaches_its_neighbours(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job with too large a payload is refused before it becomes part of a batch."""
    calls = counted(app, monkeypatch)
    answers: list[Any] = await asyncio.gather(
        queue.enqueue(1), queue.enqueue("x" * (MIB + 1)), queue.enqueue(3), return_exceptions=True
    )

    assert isinstance(answers[1], Refused)
    assert answers[1].field == "payload"
    assert [answers[0].verdict, answers[2].verdict] == ["queued", "queued"]
    assert calls == [2]


async def test_many_are_enqueued_in_order_over_several_batches(queue: Queue) -> None:
    tickets = await queue.enqueue_many(queue.bind(n, id=f"{n:04}") for n in range(2_100))

    revisions = [ticket.revision for ticket in tickets]
    assert sorted(set(revisions)) == revisions
    assert (await queue.counts()).waiting == 2_100


async def test_a_batch_with_bad_items_names_them_and_sends_nothing(queue: Queue) -> None:
    items = [1, float("nan"), queue.bind(2, id=""), *range(2_000), queue.bind(3, priority=5000)]

    with pytest.raises(BatchRefused, match="3 of 2004") as refused:
        await queue.enqueue_many(items)

    errors = [(e.index, e.field) for e in refused.value.exceptions if isinstance(e, Refused)]
    assert errors == [(1, "data"), (2, "id"), (2003, "priority")]
    assert (await queue.counts()).waiting == 0


async def test_a_bound_job_belongs_to_its_queue(queue: Queue, app: Dibs) -> None:
    with pytest.raises(BatchRefused):
        await queue.enqueue_many([app.queue("other").bind(1)])


async def test_other_tasks_run_while_many_jobs_are_checked_and_sent(queue: Queue) -> None:
    """No iteration of the event loop makes more than MAX_STARTS jobs."""
    made, per_iteration = 0, list[int]()

    def jobs() -> Iterator[int]:
        nonlocal made
        while made < 5000:
            made += 1
            yield made

    async def count_iterations() -> None:
        while True:
            before = made
            await asyncio.sleep(0)
            per_iteration.append(made - before)

    counting = asyncio.create_task(count_iterations())
    await asyncio.sleep(0)
    assert len(await queue.enqueue_many(jobs())) == 5000
    counting.cancel()

    assert max(per_iteration) <= MAX_STARTS
    # A pause after each MAX_STARTS jobs, and one before each of the 5 batches but the first.
    assert len(per_iteration) >= 5000 // MAX_STARTS + 4


async def test_nothing_is_a_batch_too(queue: Queue) -> None:
    assert list(await queue.enqueue_many([])) == []


async def complete_next(queue: Queue, result: Any) -> None:
    async with queue.receive(max_jobs=1) as claims:
        await (await anext(claims)).complete(result)


async def test_an_enqueue_may_wait_for_the_result(queue: Queue) -> None:
    worker = asyncio.create_task(complete_next(queue, "done"))

    assert await queue.enqueue_and_wait(1, wait=30, id="a", retention=0) == "done"
    await worker
    status = await queue.get("a")
    assert status is not None
    assert status.state == "completed", "the outcome is kept longer than the wait, whatever its retention"


async def test_a_wait_that_is_too_short_leaves_the_job_in_the_queue(queue: Queue) -> None:
    with pytest.raises(WaitTimeout):
        await queue.enqueue_and_wait(1, wait=0)
    with pytest.raises(Refused):
        await queue.enqueue_and_wait(1, wait=0, priority=5000)

    assert (await queue.counts()).waiting == 1


async def test_each_cancel_has_a_word_of_its_own(queue: Queue) -> None:
    await queue.enqueue(1, id="waiting")
    await queue.enqueue(1, id="active", priority=1)
    async with claimed(queue) as claim:
        assert list(await queue.cancel_many(["waiting", "active", "none"])) == [
            "cancelled",
            "active",
            "not_found",
        ]
        assert await queue.cancel("active", running=True) == "requested"
        assert await claim.release() == "cancelled"


async def test_text_is_no_list_of_ids(queue: Queue) -> None:
    with pytest.raises(Refused):
        await queue.cancel_many("abc")


async def test_an_amend_changes_what_it_names(queue: Queue, app: Dibs) -> None:
    await queue.enqueue(1, id="a", attributes={"x": 1})

    assert await queue.amend("a", attributes={"y": 2}, data=5, priority=4, delay=0) == "amended"
    async with claimed(queue) as claim:
        assert (claim.data, claim.attributes) == (5, {"x": 1, "y": 2})
        assert await queue.amend("a", data=6) == "active"
        assert await queue.amend("a", retention=Retention(completed=5)) == "amended"
    assert await queue.amend("none", priority=1) == "not_found"


async def test_retries_are_spread_over_a_time(queue: Queue) -> None:
    ids = [f"{n:03}" for n in range(250)]
    await queue.enqueue_many([queue.bind({}, id=id) for id in ids])
    async with queue.receive(wait=0) as claims:
        async for claim in claims:
            await claim.fail("down")

    answers = await queue.retry_failed_many(ids, over="10m")
    found = [await queue.get(id) for id in ("000", "099", "100", "249")]
    starts = [
        (status.run_at - status.enqueued_at).total_seconds()
        for status in found
        if status is not None and status.run_at is not None and status.enqueued_at is not None
    ]

    assert ["queued"] * 250 == answers
    assert [0, 0, 200, 400] == starts
    assert "live" == await queue.retry_failed("000", delay=60)


async def test_a_failed_job_is_retried_by_hand(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        await claim.fail("too bad")

    assert await queue.retry_failed("a") == "queued"
    assert list(await queue.retry_failed_many(["a", "b"])) == ["live", "not_found"]


async def test_what_is_forgotten_is_gone(queue: Queue) -> None:
    await queue.enqueue(1, id="a")

    assert await queue.forget("a") is True
    assert await queue.forget("a") is False


async def test_a_handed_off_job_is_finished_from_elsewhere(queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        revision = await claim.hand_off()

    assert (await ticket.status()).state == "handed_off"
    assert await queue.finish("a", revision, "by mail") == "done"
    assert await queue.finish("a", revision, "by mail") == "done"
    assert await ticket.result(0) == "by mail"


async def test_a_handed_off_job_may_fail_elsewhere(queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    async with claimed(queue) as claim:
        revision = await claim.hand_off()

    assert await queue.finish("a", revision, error=ValueError("lost")) == "done"
    status = await queue.get("a")
    assert status is not None
    assert status.error is not None
    assert (status.state, status.error.message) == ("failed", "lost")


async def test_a_fail_queue_is_read_as_its_queue_is(app: Dibs) -> None:
    """A fail job has the failed job's payload byte for byte (contract 3, the fail job)."""
    queue = app.queue("packed", serde=MessagePackSerde())
    queue.on_failure(handlers.alert)
    await queue.enqueue(b"\xff")
    async with claimed(queue) as claim:
        await claim.fail("no")

    async with claimed(app.queue("packed!fail")) as claim:
        assert claim.data == b"\xff"


async def test_data_is_checked_where_the_handler_is_known(app: Dibs) -> None:
    queue = app.queue("q")
    queue.handler(handlers.send)
    await queue.enqueue(handlers.Crop(1), id="a")

    for refused in (queue.enqueue({"left": "x"}), queue.amend("a", data={"top": 1}), queue.enqueue_many([5])):
        with pytest.raises((Refused, BatchRefused), match=r"'data' of send|1 of 1"):
            await refused
    with pytest.raises(Refused, match="'data' of send") as bad:
        _ = queue.bind({"left": None}).request
    assert bad.value.field == "data"
    assert (await queue.counts()).waiting == 1


async def test_a_tasks_queue_takes_plain_data_that_is_a_call(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    await task.queue.enqueue({"args": ["a.png"], "kwargs": {"width": 5}})

    for data, field in (({"args": [5]}, "path"), ({"args": []}, "path"), ("a.png", "")):
        with pytest.raises(Refused) as refused:
            await task.queue.enqueue(data)
        assert refused.value.field == field
    assert (await task.queue.counts()).waiting == 1


async def test_a_hook_of_a_queue_sees_data_and_limits(app: Dibs) -> None:
    queue, endings = app.queue("q"), []
    queue.handler(timeout=5, max_retries=1)(handlers.take)

    @queue.after
    def note(ending: Ending) -> None:
        endings.append(ending)
        ending.result = "noted"

    ticket = await queue.enqueue({"n": 1}, max_retries=None)
    await app.work(until="empty")

    (ending,) = endings
    assert await ticket.result(wait=0) == "noted"
    assert ending.data == {"n": 1}
    assert ending.limits == {
        "timeout": 5.0,
        "max_retries": None,
        "max_timeouts": 3,
        "max_stalls": 3,
        "backoff": Exponential(2, 300),
    }


def test_a_hook_needs_a_handler_and_is_one(app: Dibs) -> None:
    queue = app.queue("q")
    with pytest.raises(BadHandler, match="before its hook"):
        queue.after(handlers.take)
    queue.handler(handlers.take)
    queue.after(handlers.take)

    with pytest.raises(BadHandler, match="one hook"):
        queue.after(handlers.take)
