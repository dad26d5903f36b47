"""The stored jobs of a queue as a whole: `clear`, on each storage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import Dibs, Fixed, LeaseLost, MessagePackSerde, Queue, Retention, Status
from dibs.client.claim import Claim
from tests.client import handlers
from tests.client.manual_claims import claimed, enqueue_unchecked

STATES: tuple[Any, ...] = ("waiting", "active", "blocked", "completed", "failed", "cancelled")


async def left(queue: Queue) -> dict[str, list[str]]:
    """Return the ids of each state that has any."""
    found = {state: [status.id async for status in queue.list(state)] for state in STATES}
    return {state: ids for state, ids in found.items() if ids}


async def fill(queue: Queue) -> None:
    """Enqueue a job for each end, one that waits, one that is scheduled."""
    for id in ("completed", "failed"):
        await queue.enqueue(1, id=id)
        async with claimed(queue) as claim:
            await (claim.complete() if id == "completed" else claim.fail("no"))
    await queue.enqueue(1, id="cancelled")
    await queue.cancel("cancelled")
    await queue.enqueue_many([1, 2])
    await queue.enqueue(1, id="later", delay=3600)


async def test_a_cleared_queue_has_no_job_and_no_outcome(any_queue: Queue) -> None:
    await fill(any_queue)

    assert await any_queue.clear() == 3
    assert await left(any_queue) == {}
    assert await any_queue.clear() == 0


async def test_an_active_job_stays_and_ends_as_usual(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await any_queue.enqueue(2, id="a")
        await fill_waiting(any_queue)

        assert await any_queue.clear() == 3
        assert await left(any_queue) == {"active": ["a"]}
        await claim.complete()
    assert await left(any_queue) == {"completed": ["a"]}


async def fill_waiting(queue: Queue) -> None:
    await queue.enqueue_many([1, 2])


async def test_running_removes_active_jobs_too(any_queue: Queue) -> None:
    for id in ("a", "b"):
        await any_queue.enqueue(1, id=id)
    async with any_queue.receive(wait=0) as claims:
        first, second = await anext(claims), await anext(claims)
        await second.hand_off()

        assert await any_queue.clear(running=True) == 2
        assert await left(any_queue) == {}
        with pytest.raises(LeaseLost):
            await first.complete()


async def test_a_queue_of_several_pages_is_cleared(any_queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.client.stored_queue.PAGE_SIZE", 3)
    await any_queue.enqueue_many(range(10))

    assert await any_queue.clear() == 10
    assert await left(any_queue) == {}


# -- Listings of a queue: all jobs of a state, or a page of them with a cursor -----------------------


IDS = sorted(f"job-{number}" for number in range(7))


async def fill_queue(queue: Queue) -> None:
    await queue.enqueue_many(queue.bind(id, id=id) for id in IDS)


async def page(queue: Queue, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
    listing = queue.list("waiting", limit=limit, after=after)
    return [status.id async for status in listing], listing.cursor


async def test_pages_follow_each_other_to_the_end(any_queue: Queue) -> None:
    await fill_queue(any_queue)
    ids: list[str] = []
    sizes: list[int] = []
    after = None

    while not sizes or after is not None:
        found, after = await page(any_queue, 3, after)
        ids += found
        sizes.append(len(found))

    assert sorted(ids) == IDS
    assert max(sizes) == 3


async def test_without_a_limit_everything_is_listed(any_queue: Queue) -> None:
    await fill_queue(any_queue)
    listing = any_queue.list("waiting")

    assert sorted([status.data async for status in listing]) == IDS
    assert listing.cursor is None


async def test_a_page_may_be_larger_than_a_call_of_the_storage(
    any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.client.listing.PAGE_SIZE", 2)
    await fill_queue(any_queue)

    first, after = await page(any_queue, 5)
    rest, end = await page(any_queue, 5, after)

    assert (len(first), sorted(first + rest), end) == (5, IDS, None)


async def test_the_cursor_of_a_broken_off_iteration_loses_nothing(any_queue: Queue) -> None:
    await fill_queue(any_queue)
    listing = any_queue.list("waiting", limit=4)
    async for _ in listing:
        break
    rest, _ = await page(any_queue, 100, listing.cursor)

    assert sorted(rest) == IDS


# -- Statuses: what `queue.get` says about a job, its data and its end, on each storage --------------


async def status(queue: Queue, id: str) -> Status:
    found = await queue.get(id)
    assert found is not None
    return found


async def test_a_waiting_job_shows_its_data_and_own_limits(any_queue: Queue) -> None:
    await any_queue.enqueue(
        {"to": "ada"},
        id="a",
        timeout=None,
        max_retries=2,
        backoff=Fixed(5),
        lease=90,
        retention=Retention(completed=60, failed=None, keep_payload=("completed",)),
    )

    found = await status(any_queue, "a")

    assert found.data == {"to": "ada"}
    assert (found.args, found.kwargs, found.result, found.lease) == ((), {}, None, "")
    assert found.limits == {"timeout": None, "max_retries": 2, "backoff": Fixed(5), "lease": 90.0}
    assert found.retention == Retention(completed=60.0, failed=None, keep_payload=("completed",))


async def test_a_plain_job_has_no_limits_of_its_own(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")

    found = await status(any_queue, "a")

    assert (found.data, found.limits, found.retention) == (1, {}, None)


async def test_a_task_shows_its_arguments(app: Dibs) -> None:
    task = app.task(handlers.thumbnail)
    ticket = await task.options(id="a").enqueue("a.png", width=5)

    found = await ticket.status()

    assert (found.args, found.kwargs) == (("a.png",), {"width": 5})
    assert found.data == {"args": ["a.png"], "kwargs": {"width": 5}}


async def test_an_active_job_shows_its_lease_and_a_blocked_one_its_own_data(any_queue: Queue) -> None:
    await any_queue.enqueue("first", id="a")
    async with claimed(any_queue) as claim:
        blocked = await any_queue.enqueue("second", id="a", max_retries=1)
        active, waiting = await status(any_queue, "a"), await blocked.status()

        assert (active.data, active.lease) == ("first", claim._lease)
    assert (waiting.state, waiting.data, waiting.limits) == ("blocked", "second", {"max_retries": 1})


async def test_an_end_shows_its_result_and_the_data_that_is_kept(any_queue: Queue) -> None:
    for id, kept in (("a", ()), ("b", ("completed",))):
        await any_queue.enqueue("data", id=id, max_retries=1, retention=Retention(keep_payload=kept))  # type: ignore[arg-type]
        async with claimed(any_queue) as claim:
            await claim.complete({"n": 1})

    plain, full = await status(any_queue, "a"), await status(any_queue, "b")
    assert (plain.result, plain.data, plain.limits) == ({"n": 1}, None, {})
    assert (full.result, full.data, full.limits) == ({"n": 1}, "data", {"max_retries": 1})


async def test_data_of_another_serde_is_bytes(app: Dibs) -> None:
    queue = app.queue("q", serde=MessagePackSerde())
    await queue.enqueue({"n": 1}, id="a")
    other = Dibs("memory:").queue("q")
    other._client.storage_handle = queue._client.storage_handle

    assert isinstance((await status(other, "a")).data, bytes)
    assert (await status(queue, "a")).data == {"n": 1}


@pytest.mark.parametrize("data", [{"args": 1, "kwargs": {}}, {"args": [1]}, [1], "args"])
async def test_data_that_is_no_call_has_no_arguments(app: Dibs, data: object) -> None:
    await enqueue_unchecked(app.queue("q"), data, id="a")

    found = await status(app.queue("q"), "a")

    assert (found.args, found.kwargs) == ((), {})


# -- The last progress of a run: its outcome keeps it, tickets and feeds end with it, on each storage --


async def end(claim: Claim, kind: str) -> None:
    if kind == "completed":
        await claim.complete("done")
    else:
        await claim.fail("broken")


async def test_a_waiting_ticket_gets_the_value_just_before_the_end(any_queue: Queue) -> None:
    """The end follows the report at once, so a reader meets an ended job."""
    for number in range(10):
        ticket = await any_queue.enqueue(1, id=f"a{number}")
        async with asyncio.timeout(60), claimed(any_queue) as claim:
            values = asyncio.ensure_future(received(ticket.progress()))
            await claim.progress("first")
            await claim.progress("last")
            await claim.complete()

            assert "last" == (await values)[-1]


async def received(values: Any) -> list[Any]:
    return [value async for value in values]


async def test_a_live_feed_shows_the_value_just_before_the_end(any_queue: Queue) -> None:
    last: dict[str, Any] = {}
    ended: list[str] = []
    async with asyncio.timeout(60), any_queue.events() as events:
        for number in range(10):
            await any_queue.enqueue(1, id=f"a{number}")
            async with claimed(any_queue) as claim:
                await claim.progress("first")
                await claim.progress(f"last of a{number}")
                await claim.complete()
        while len(ended) < 10 or len(set(last.values()) - {"first"}) < 10:
            event = await anext(events)
            if event.kind == "progress":
                last[event.id] = event.progress
            else:
                ended.append(event.id)

    assert {f"a{number}": f"last of a{number}" for number in range(10)} == last


async def test_a_live_feed_shows_no_progress_of_runs_before_it(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a")
    async with claimed(any_queue) as claim:
        await claim.progress("before the feed")
        await claim.complete()
    async with asyncio.timeout(60), any_queue.events(kinds=["progress"]) as events:
        await any_queue.enqueue(1, id="a")
        coming = asyncio.ensure_future(anext(events))
        async with claimed(any_queue) as claim:
            await claim.progress("in the feed")

            assert "in the feed" == (await coming).progress
            await claim.complete()
