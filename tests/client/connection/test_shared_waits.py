"""Waits that begin at once share calls of the storage, on every storage."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import Dibs, NotRunning, Queue, Ticket, WaitTimeout
from dibs.client.connection.shared_waits import MAX_WAITERS
from dibs.model.results import WaitResult
from tests.client.manual_claims import claimed
from tests.client.verb_counts import counted

WAITS = 4 * MAX_WAITERS
SOON = 120


async def begin_waits(tickets: Any, waits: Any) -> list[asyncio.Task[Any]]:
    """Begin to wait for all tickets at once, and return when each group waits in the storage."""
    tasks = [asyncio.create_task(ticket.result(SOON)) for ticket in tickets]
    while waits["wait"] * MAX_WAITERS < len(tickets) or not waits["get"]:  # noqa: ASYNC110 - no event
        await asyncio.sleep(0)
    return tasks


async def test_waits_that_begin_at_once_share_calls(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = await any_queue.enqueue_many(range(WAITS))
    calls = counted(any_app.storage, monkeypatch)
    ends = await asyncio.gather(*(ticket.result(0.01) for ticket in tickets), return_exceptions=True)

    assert {WaitTimeout} == {type(end) for end in ends}
    # Each group waits at least once, and once more if its first wait may have missed an end.
    assert WAITS / MAX_WAITERS <= calls["wait"] <= 3 * WAITS / MAX_WAITERS


async def test_only_the_waiter_of_an_ended_id_reads_again(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wake-up names the ids that ended, so the other waiters of the group go on sleeping."""
    tickets = await any_queue.enqueue_many(range(MAX_WAITERS))
    reads: list[str] = []
    get = any_app.storage.get

    async def recorded(queue: str, ids: list[str]) -> Any:
        reads.extend(ids)
        return await get(queue, ids)

    calls = counted(any_app.storage, monkeypatch)
    monkeypatch.setattr(any_app.storage, "get", recorded)
    # The first wait of a storage begins to listen. It wakes all waiters, because messages may be missing.
    await any_app.storage.wait([any_queue.name], for_="ids", ids=["unknown"], timeout=0.01)
    calls.clear()
    tasks = [asyncio.create_task(ticket.result(SOON)) for ticket in tickets]
    while len(reads) < MAX_WAITERS or not calls["wait"]:  # noqa: ASYNC110 - the waiters send no event
        await asyncio.sleep(0)
    async with claimed(any_queue) as claim:
        await claim.complete("done")
        [ended] = [task for task, ticket in zip(tasks, tickets, strict=True) if ticket.id == claim.id]

        assert "done" == await ended
    assert {claim.id} >= set(reads[MAX_WAITERS:])
    await cancel(tasks)


async def test_a_cancelled_waiter_does_not_affect_the_others(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets = await any_queue.enqueue_many(range(MAX_WAITERS))
    tasks = await begin_waits(tickets, counted(any_app.storage, monkeypatch))
    async with claimed(any_queue) as claim:
        [mine] = [task for task, ticket in zip(tasks, tickets, strict=True) if ticket.id == claim.id]
        tasks.remove(mine)
        await cancel(tasks)
        await claim.complete("done")

        assert "done" == await mine


async def test_closing_the_app_ends_all_shared_waits(storage_url: str) -> None:
    app = Dibs(storage_url)
    await app.open()
    tickets = await app.queue("q").enqueue_many(range(WAITS))
    tasks = [asyncio.create_task(ticket.result(SOON)) for ticket in tickets]
    await asyncio.sleep(0.01)
    await app.close()

    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert {NotRunning} == {type(end) for end in ends}
    assert WAITS == len({id(end) for end in ends})  # each has an exception of its own


async def test_waiters_join_a_new_group_if_the_shared_task_was_cancelled(any_queue: Queue) -> None:
    """A program may cancel all tasks that it does not know."""
    before = asyncio.all_tasks()
    ticket = await any_queue.enqueue(1)
    waiter = asyncio.create_task(ticket.result(SOON))
    await asyncio.sleep(0.01)
    await cancel([task for task in asyncio.all_tasks() - before if "_wait_until_left" in repr(task)])
    async with claimed(any_queue) as claim:
        await claim.complete("done")

    assert "done" == await waiter


async def test_a_waiter_that_is_cancelled_before_its_group_begins_leaves_no_group(
    any_app: Dibs, any_queue: Queue
) -> None:
    ticket = await any_queue.enqueue(1)
    waiter = asyncio.create_task(ticket.result(SOON))
    await asyncio.sleep(0)
    await cancel([waiter])
    other: asyncio.Task[Any] = asyncio.create_task(same_ticket(ticket).result(SOON))
    async with claimed(any_queue) as claim:
        await claim.complete("done")

    assert "done" == await other
    assert not any_app._storage_handle.opened.waits._starting


async def test_a_storage_that_names_no_ended_ids_wakes_all_waiters(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = any_app.storage.wait

    async def without_ids(*args: Any, **named: Any) -> WaitResult:
        woken = await wait(*args, **named)
        return WaitResult(woken=woken.woken, since=woken.since)

    monkeypatch.setattr(any_app.storage, "wait", without_ids)
    tickets = await any_queue.enqueue_many(range(WAITS))
    tasks = [asyncio.create_task(ticket.result(SOON)) for ticket in tickets]
    async with any_queue.receive(max_jobs=7, wait=0) as claims:
        async for claim in claims:
            await claim.complete(claim.data)

    assert [*range(WAITS)] == await asyncio.gather(*tasks)


def same_ticket(ticket: Ticket[Any]) -> Ticket[Any]:
    return Ticket(ticket._client, ticket.id, ticket.revision)


async def cancel(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
