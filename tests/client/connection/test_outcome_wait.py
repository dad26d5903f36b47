"""A wait subscribes, reads the state, and polls it slowly (contract 1, Done)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dibs import (
    Dibs,
    JobCancelled,
    NotRunning,
    Queue,
    StorageUnavailable,
    WaitTimeout,
)
from dibs.client.connection import outcome_wait
from dibs.client.options.job_settings import WAIT_SLACK_MS
from dibs.model.results import WaitResult
from tests.client.manual_claims import claimed
from tests.client.verb_counts import counted


@pytest.fixture
def queue(any_queue: Queue) -> Queue:
    return any_queue


@pytest.fixture
def app(any_app: Dibs) -> Dibs:
    return any_app


async def test_a_lost_wake_up_costs_latency_and_not_the_result(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(*_args: Any, **_named: Any) -> None:
        raise StorageUnavailable

    ticket = await queue.enqueue(1, id="a")
    monkeypatch.setattr(outcome_wait, "SLOW_POLL_SECONDS", 0.01)
    monkeypatch.setattr(app.storage, "wait", unavailable)
    async with claimed(queue) as claim:
        waiter = asyncio.create_task(ticket.result(30))
        await asyncio.sleep(0)
        await claim.complete("done")

        assert await waiter == "done"


async def test_a_wait_extends_the_retention_of_the_outcome(queue: Queue, app: Dibs) -> None:
    """A wait for a result raises the job's retention to at least the length of the wait plus 60 s."""
    ticket = await queue.enqueue(1, id="a", retention=1)
    with pytest.raises(WaitTimeout):
        await ticket.result(0.02)

    slot = (await app.storage.get(queue.name, ["a"]))[0]
    assert slot.current is not None
    kept = slot.current.data.retention
    assert kept is not None
    assert isinstance(kept.completed, int)
    assert WAIT_SLACK_MS <= kept.completed <= WAIT_SLACK_MS + 20


async def test_a_wait_does_not_change_a_long_enough_retention(queue: Queue, app: Dibs) -> None:
    ticket = await queue.enqueue(1, id="a", retention=None)
    with pytest.raises(WaitTimeout):
        await ticket.result(0)

    status = await queue.get("a")
    slot = (await app.storage.get(queue.name, ["a"]))[0]
    assert status is not None
    assert slot.current is not None
    assert slot.current.data.retention is not None
    assert slot.current.data.retention.completed is None


async def test_a_successor_keeps_the_retention_it_was_given(queue: Queue, app: Dibs) -> None:
    """A wait for the active run does not shorten the retention of its blocked successor."""
    first = await queue.enqueue(1, id="a", retention=1)
    async with claimed(queue):
        await queue.enqueue(2, id="a", retention=None)
        with pytest.raises(WaitTimeout):
            await first.result(0)

        slot = (await app.storage.get(queue.name, ["a"]))[0]
        assert slot.successor is not None
        assert slot.successor.data.retention is not None
        assert slot.successor.data.retention.completed is None


async def test_a_waiter_subscribes_before_it_reads(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wait that read first would miss a change between reading and subscribing (contract 1, Done)."""
    order: list[str] = []
    wait, get = app.storage.wait, app.storage.get

    def recorded(name: str, verb: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            order.append(name)
            return verb(*args, **named)

        return call

    ticket = await queue.enqueue(1)
    monkeypatch.setattr(app.storage, "wait", recorded("wait", wait))
    monkeypatch.setattr(app.storage, "get", recorded("get", get))
    with pytest.raises(WaitTimeout):
        await ticket.result(0)

    assert order[:2] == ["wait", "get"]


async def test_closing_the_app_ends_a_wait(storage_url: str) -> None:
    app = Dibs(storage_url)
    await app.open()
    waiter = asyncio.create_task((await app.queue("q").enqueue(1)).result(30))
    await asyncio.sleep(0)
    await app.close()

    with pytest.raises(NotRunning):
        await waiter


async def test_an_update_during_a_wait_cannot_take_the_outcome_away(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outcome_wait, "SLOW_POLL_SECONDS", 0.01)
    ticket = await queue.enqueue(1, id="a")
    waiter = asyncio.create_task(ticket.result(30))
    await asyncio.sleep(0)
    await queue.enqueue(2, id="a", retention=0)
    while await kept_for(queue, "a") == 0:  # noqa: ASYNC110 - the waiter sends no event when it has read the state
        await asyncio.sleep(0)
    async with claimed(queue) as claim:
        await claim.complete("both")

    assert await waiter == "both"


async def kept_for(queue: Queue, id: str) -> object:
    slot = await queue._client.get(id)
    assert slot.current is not None
    assert slot.current.data.retention is not None
    return slot.current.data.retention.completed


@pytest.mark.long
async def test_an_outcome_in_the_wake_up_is_not_read_again(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wake-ups of Redis carry small outcomes. The waiter reads the state once, before it waits."""
    calls, carries_outcomes = counted(app.storage, monkeypatch), (app.storage.url or "").startswith("redis:")
    for number in range(3):
        before = calls["get"]
        ticket = await queue.enqueue(number, id="a")
        async with claimed(queue) as claim:
            waiter = asyncio.create_task(ticket.result(30))
            while calls["get"] == before:  # noqa: ASYNC110 - the waiter sends no event before it waits
                await asyncio.sleep(0)
            await claim.complete(number)

            assert await waiter == number
        # The subscription begins with the first wait, which may miss the wake-up and read once more.
        assert not carries_outcomes or number == 0 or before + 1 == calls["get"]


@pytest.mark.parametrize("first", [True, False])
async def test_the_outcome_of_another_enqueue_does_not_end_the_wait(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch, *, first: bool
) -> None:
    """An outcome in a wake-up counts only for the enqueues that it covers (contract 1, Done)."""
    tickets = [await queue.enqueue("first", id="a")]
    async with claimed(queue) as claim:
        tickets.append(await queue.enqueue("second", id="a"))
        await claim.complete("of the first")
    [slot] = await app.storage.get(queue.name, ["a"])
    assert slot.outcome is not None
    wakeup = WaitResult(woken=True, since={}, outcomes={"a": slot.outcome})

    async def wait(*_args: Any, **_named: Any) -> WaitResult:
        await asyncio.sleep(0)
        return wakeup

    monkeypatch.setattr(app.storage, "wait", wait)
    if first:
        assert await tickets[0].result(30) == "of the first"
    else:
        with pytest.raises(WaitTimeout):
            await tickets[1].result(0.05)


async def test_an_outcome_of_several_enqueues_does_not_hide_a_cancelled_one(
    queue: Queue, app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The range of the outcome covers three enqueues. The second was cancelled, the third folded in."""
    tickets = [await queue.enqueue("first", id="a")]
    async with claimed(queue) as claim:
        tickets.append(await queue.enqueue("dropped", id="a"))
        # The waiter of the second enqueue reads this pending state, and gets its wake-up after the end.
        pending = await app.storage.get(queue.name, ["a"])
        await queue.cancel("a")
        tickets.append(await queue.enqueue("third", id="a"))
        await claim.release()
    async with claimed(queue) as claim:
        await claim.complete("done")
    [slot] = await app.storage.get(queue.name, ["a"])
    assert slot.outcome is not None
    late = WaitResult(woken=True, since={}, outcomes={"a": slot.outcome})
    reads, read = [pending], app.storage.get

    async def wait(*_args: Any, **_named: Any) -> WaitResult:
        await asyncio.sleep(0)
        return late

    async def get(name: str, ids: list[str]) -> Any:
        return reads.pop() if reads else await read(name, ids)

    monkeypatch.setattr(app.storage, "wait", wait)
    monkeypatch.setattr(app.storage, "get", get)
    with pytest.raises(JobCancelled):
        await tickets[1].result(30)
    assert [await tickets[0].result(30), await tickets[2].result(30)] == ["done", "done"]
