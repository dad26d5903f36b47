"""Waits that begin at once share calls of the storage, on every storage."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from dibs import (
    Dibs,
    NotRunning,
    OutcomeNotKept,
    Queue,
    Refused,
    Reject,
    Retention,
    StorageUnavailable,
    Ticket,
    Update,
    WaitTimeout,
)
from dibs.client.connection.coalesced_calls import QueueRetentions
from dibs.client.connection.shared_waits import MAX_WAITERS
from dibs.model.results import WaitResult
from dibs_conformance.servers import RedisServer
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


# -- Waits share one read of the queues' retentions, on every storage --------------------------------


async def test_waits_for_many_queues_read_the_settings_once(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [any_app.queue(f"{any_queue.name}-{n}") for n in range(20)]
    tickets = [await queue.enqueue(n) for queue in queues for n in range(5)]
    calls = counted(any_app.storage, monkeypatch)
    ends = await asyncio.gather(*(ticket.result(0.01) for ticket in tickets), return_exceptions=True)

    assert {WaitTimeout} == {type(end) for end in ends}
    assert 1 == calls["queues"]


async def test_a_client_sees_the_retention_that_it_configured(any_queue: Queue) -> None:
    client = any_queue._client
    await any_queue.configure(retention=5)
    before = await client.retention()
    await any_queue.configure(retention=7)

    assert (5000, 7000) == (before.completed, (await client.retention()).completed)


async def test_a_failed_read_is_repeated_by_the_next_caller(
    any_app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable() -> None:
        raise StorageUnavailable

    retentions = QueueRetentions(any_app.storage)
    with monkeypatch.context() as patch:
        patch.setattr(any_app.storage, "queues", unavailable)
        with pytest.raises(StorageUnavailable):
            await retentions.get("q")

    assert await retentions.get("q") == await any_app.queue("q")._client.retention()


# -- A wait for a new job begins without a read of its state, if the storage watches its end ---------


@pytest.fixture
async def app(redis_server: RedisServer) -> AsyncIterator[Dibs]:
    async with Dibs(f"{redis_server.url}?prefix=waits-without-reads") as app:
        # The first lease of a queue makes the secret of its messages, and its first wait begins to listen.
        await app.storage.grant(["q"], 1, "first")
        await app.storage.wait(["q"], for_="ids", ids=["unknown"], timeout=0.01)
        # A wait that does not know the retention of its queue begins with a read.
        await app.queue("q")._client.retention()
        # Watches begin after one message.
        first = await app.queue("q").enqueue(0)
        await complete_next(app.queue("q"), "first")
        await app.storage.wait(["q"], for_="ids", ids=[first.id], since={"q": "0"}, timeout=SOON)
        yield app


@pytest.fixture
def calls(app: Dibs, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return counted(app.storage, monkeypatch)


async def complete_next(queue: Queue, value: object) -> None:
    async with queue.receive(max_jobs=1, wait=SOON) as claims:
        await (await anext(claims)).complete(value)


async def test_a_wait_for_a_new_job_reads_nothing(queue: Queue, calls: Counter[str]) -> None:
    waiting = asyncio.create_task(queue.enqueue_and_wait(1, wait=SOON))
    await complete_next(queue, "done")

    assert "done" == await waiting
    assert 0 == calls["get"]


async def test_an_end_that_no_message_reported_is_read(app: Dibs, calls: Counter[str]) -> None:
    """The storage did not listen to this queue when the job ended."""
    other = app.queue("unheard")
    ticket = await other.enqueue(1)
    await complete_next(other, "done")

    assert "done" == await ticket.result(SOON)
    assert 1 == calls["get"]


@pytest.mark.parametrize("case", ["updated", "found by revision", "short retention", "unknown retention"])
async def test_other_waits_begin_with_a_read(queue: Queue, calls: Counter[str], case: str) -> None:
    if case == "unknown retention":
        await queue.configure(retention=Retention())
    retention = Retention(completed=1) if case == "short retention" else Retention()
    ticket = await queue.enqueue(1, id=case, retention=retention)
    if case == "updated":
        ticket = await queue.enqueue(2, id=case)
    if case == "found by revision":
        ticket = queue.ticket(case, ticket.revision)
    waiting = asyncio.create_task(ticket.result(SOON))
    while not calls["get"]:  # noqa: ASYNC110 - the waiter sends no event
        await asyncio.sleep(0)
    await complete_next(queue, "done")

    assert "done" == await waiting


async def test_an_end_of_an_earlier_run_of_the_id_is_not_the_result(queue: Queue) -> None:
    first = await queue.enqueue(1, id="again")
    await complete_next(queue, "first")
    second = await queue.enqueue(2, id="again")
    waiting = asyncio.create_task(second.result(SOON))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await complete_next(queue, "second")

    assert "second" == await waiting
    assert second.revision > first.revision


# -- WaitTimeout and OutcomeNotKept say what the storage showed, on every storage --------------------


async def timeout_text(ticket: Ticket[object]) -> str:
    with pytest.raises(WaitTimeout) as caught:
        await ticket.result(0.01)
    return str(caught.value).partition("did not end in time: ")[2]


async def test_a_timeout_says_where_the_job_is(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1, id="a")
    assert "it was never claimed. Is a worker running for this queue" in await timeout_text(ticket)

    async with claimed(any_queue):
        assert "attempt 1 is active" in await timeout_text(ticket)
        after = await any_queue.enqueue(2, id="a")
        assert "waits until the active run of the same id ends (attempt 1)" in await timeout_text(after)


async def test_a_timeout_after_a_retry_names_the_attempt(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1)
    async with claimed(any_queue) as claim:
        await claim.retry(delay=3600)

    assert re.search(r"waits again after attempt 1 and is due at \d{4}-", await timeout_text(ticket))


async def test_a_timeout_of_a_scheduled_job_names_its_time(any_queue: Queue) -> None:
    ticket = await any_queue.enqueue(1, delay=3600)

    assert re.match(r"it was never claimed and is due at \d{4}-\d\d-\d\dT", await timeout_text(ticket))


async def test_an_outcome_that_a_later_run_replaced_is_explained(any_queue: Queue) -> None:
    first = await any_queue.enqueue(1, id="hot")
    for number in range(2):
        async with claimed(any_queue) as claim:
            await claim.complete(number)
        if number == 0:
            await any_queue.enqueue(2, id="hot")

    with pytest.raises(OutcomeNotKept, match=f"revision {first.revision} .*a later run of the same id"):
        await first.result(0)


async def test_a_live_id_without_the_outcome_is_explained(any_queue: Queue) -> None:
    first = await any_queue.enqueue(1, id="hot", retention=0)
    async with claimed(any_queue) as claim:
        await claim.complete(1)
    await any_queue.enqueue(2, id="hot")

    async with asyncio.timeout(60):
        with pytest.raises(OutcomeNotKept, match="enqueued again, and that job is live"):
            await first.result(0)


async def test_an_enqueue_that_the_storage_does_not_know_may_have_been_lost(any_queue: Queue) -> None:
    """A failover may lose an accepted enqueue; the storage cannot tell it from an outcome that expired."""
    ticket = await any_queue.enqueue(1, id="a")
    await any_queue.forget("a")
    with pytest.raises(
        OutcomeNotKept, match=f"revision {ticket.revision}.* expired .*Or the storage lost it"
    ):
        await ticket.result(0)


@pytest.mark.parametrize("rule", [Reject, Update])
async def test_a_class_as_on_conflict_is_told_to_be_called(rule: type) -> None:
    with pytest.raises(Refused, match=rf"write {rule.__name__}\(\)") as refused:
        await Dibs("memory:").queue("q").enqueue(1, on_conflict=rule)  # type: ignore[arg-type]

    assert "on_conflict" == refused.value.field
