"""Calls one by one are sent without a task, and concurrent calls share batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dibs import Dibs, OutcomeUnknown, StorageBusy
from dibs.client.connection.call_limits import CallTimeout
from dibs.client.connection.coalescing import Coalescer, DirectCalls
from dibs.storage.redis.network.connections import RedisConnections
from dibs_conformance.servers import RedisServer

Result = Sequence[int] | Exception | None


class FakeStorage:
    """Doubles each item. A direct call stays in flight until the test answers it."""

    def __init__(self, timeout: CallTimeout | None = None) -> None:
        self.batches: list[list[int]] = []
        self.direct: list[int] = []
        self.ends: list[Callable[[Result], None]] = []
        self.refuses = False
        self.calls: DirectCalls[int, int] = DirectCalls(self.start, timeout or CallTimeout())
        self.coalescer: Coalescer[int, int] = Coalescer(
            self.send, direct=self.calls, timeout=timeout or CallTimeout()
        )

    async def send(self, items: list[int]) -> list[int]:
        self.batches.append(items)
        await asyncio.sleep(0)
        return [item * 2 for item in items]

    def start(self, item: int, on_end: Callable[[Result], None]) -> bool:
        if self.refuses:
            return False
        self.direct.append(item)
        self.ends.append(on_end)
        return True

    async def begin(self, item: int) -> asyncio.Task[int]:
        call = asyncio.create_task(self.coalescer.add(item))
        await asyncio.sleep(0)
        return call


@pytest.fixture
async def storage() -> FakeStorage:
    storage = FakeStorage()
    assert 2 == await storage.coalescer.add(1)
    return storage


async def test_the_second_call_in_a_row_is_sent_directly(storage: FakeStorage) -> None:
    call = await storage.begin(2)
    storage.ends[0]([4])

    assert 4 == await call
    assert ([[1]], [2]) == (storage.batches, storage.direct)


async def test_calls_during_a_direct_call_form_a_batch_and_the_next_calls_too(storage: FakeStorage) -> None:
    first = await storage.begin(2)
    others = [await storage.begin(item) for item in (3, 4)]
    storage.ends[0]([4])

    assert [4, 6, 8] == [await call for call in (first, *others)]
    assert [10, 12] == list(await asyncio.gather(storage.coalescer.add(5), storage.coalescer.add(6)))
    assert ([[1], [3, 4], [5, 6]], [2]) == (storage.batches, storage.direct)


async def test_an_error_of_a_direct_call_is_raised_in_its_caller(storage: FakeStorage) -> None:
    call = await storage.begin(2)
    storage.ends[0](OutcomeUnknown("lost"))

    with pytest.raises(OutcomeUnknown, match="lost"):
        await call


async def test_a_direct_call_that_did_not_run_is_sent_again_before_later_calls(storage: FakeStorage) -> None:
    first, second = await storage.begin(2), await storage.begin(3)
    storage.ends[0](None)

    assert [4, 6] == [await first, await second]
    assert [[1], [2, 3]] == storage.batches


async def test_a_call_that_cannot_be_sent_directly_is_sent_in_a_batch(storage: FakeStorage) -> None:
    storage.refuses = True

    assert 4 == await storage.coalescer.add(2)
    assert ([[1], [2]], []) == (storage.batches, storage.direct)


async def test_later_calls_wait_for_a_cancelled_direct_call(storage: FakeStorage) -> None:
    """The request was sent, so a later call must not overtake it."""
    first, second = await storage.begin(2), await storage.begin(3)
    first.cancel()
    await asyncio.sleep(0.01)
    assert first.cancelled()
    assert [[1]] == storage.batches
    storage.ends[0]([4])

    assert 6 == await second
    assert [[1], [3]] == storage.batches


async def test_drain_waits_for_a_direct_call(storage: FakeStorage) -> None:
    call = await storage.begin(2)
    assert not storage.coalescer.is_idle
    drained = asyncio.create_task(storage.coalescer.drain())
    await asyncio.sleep(0.01)
    assert not drained.done()
    storage.ends[0]([4])
    await drained

    assert 4 == await call
    assert storage.coalescer.is_idle


async def test_a_direct_call_without_an_answer_ends_at_its_deadline() -> None:
    storage = FakeStorage(CallTimeout(0.05))
    await storage.coalescer.add(1)
    first, second = await storage.begin(2), await storage.begin(3)

    with pytest.raises(OutcomeUnknown, match="was sent and had no answer"):
        await first
    with pytest.raises(StorageBusy):
        await second
    storage.ends[0]([4])
    assert 8 == await storage.coalescer.add(4)
    await storage.coalescer.drain()


def test_the_end_of_the_event_loop_waits_for_a_direct_call() -> None:
    answers: list[object] = []

    async def caller(storage: FakeStorage) -> None:
        answers.append(await storage.coalescer.add(2))
        await asyncio.sleep(0)
        answers.append("the task was not cancelled")

    async def main() -> None:
        storage = FakeStorage()
        await storage.coalescer.add(1)
        asyncio.get_running_loop().call_later(0.05, lambda: storage.ends[0]([4]))
        global task  # noqa: PLW0603 - a task without a reference may be collected
        task = asyncio.create_task(caller(storage))
        await asyncio.sleep(0)

    asyncio.run(main())

    assert [4] == answers
    assert task.cancelled()


task: asyncio.Task[None]


# -- on Redis ----------------------------------------------------------------------------------------


async def test_awaited_enqueues_on_redis_take_no_request_of_a_task(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def note(name: str, pool: RedisConnections, *args: Any, **named: Any) -> Any:
        sent.append(name)
        return plain[name](pool, *args, **named)

    plain: dict[str, Callable[..., Any]] = {
        name: getattr(RedisConnections, name) for name in ("start", "call")
    }
    async with Dibs(f"{redis_server.url}?prefix=direct") as app:
        queue = app.queue("q")
        await queue.enqueue(0)
        for name in plain:
            monkeypatch.setattr(
                RedisConnections,
                name,
                lambda pool, *args, name=name, **named: note(name, pool, *args, **named),
            )
        tickets = [await queue.enqueue(n) for n in range(10)]

        assert ["start"] * 10 == sent
        assert sorted(ticket.revision for ticket in tickets) == [ticket.revision for ticket in tickets]
        redis_server.forget_code()
        assert "queued" == (await queue.enqueue(11)).verdict
        assert 12 == (await queue.counts()).waiting


async def test_a_lost_connection_during_a_direct_enqueue_is_an_unknown_outcome(
    redis_server: RedisServer,
) -> None:
    async with Dibs(f"{redis_server.url}?prefix=direct-lost") as app:
        queue = app.queue("q")
        await queue.enqueue(0)
        redis_server.execute("CLIENT", "PAUSE", 60_000, "WRITE")
        call = asyncio.create_task(queue.enqueue(1))
        await asyncio.sleep(0.05)
        redis_server.execute("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        with pytest.raises(OutcomeUnknown, match="lost the reply"):
            await call
        redis_server.execute("CLIENT", "UNPAUSE")
        assert "queued" == (await queue.enqueue(2)).verdict
