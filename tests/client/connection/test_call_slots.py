"""Pending enqueues are bounded: later calls wait in lines, start in portions, and each gets an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from dibs import Dibs, NotRunning, Refused, StorageBusy
from dibs.client.connection import call_limits
from dibs.client.connection.call_limits import MAX_STARTS, CallSlots
from dibs.client.options.serde import JsonSerde
from dibs.model.requests import EnqueueRequest
from dibs.model.results import EnqueueResult
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Storage


class PausedStorage(MemoryStorage):
    """A storage in memory that answers enqueues while `resumed` is set, and records their queues and data."""

    def __init__(self) -> None:
        super().__init__()
        self.resumed = asyncio.Event()
        self.sent: list[tuple[str, bytes]] = []

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        self.sent += [(queue, request.job.data.payload) for request in requests]
        await self.resumed.wait()
        return await super().enqueue(queue, requests, now=now)


class CountingSerde(JsonSerde):
    """Counts the encoded values, in total and in each iteration of the event loop."""

    def __init__(self) -> None:
        self.encoded = 0
        self.per_iteration: list[int] = []

    def encode(self, value: Any) -> bytes:
        self.encoded += 1
        return super().encode(value)

    async def count_iterations(self) -> None:
        while True:
            before = self.encoded
            await asyncio.sleep(0)
            self.per_iteration.append(self.encoded - before)


async def double(number: int) -> int:
    return 2 * number


def slots_of(app: Dibs) -> CallSlots:
    return app._storage_handle.opened.slots


async def iterate(times: int = 10) -> None:
    for _ in range(times):
        await asyncio.sleep(0)


def start(calls: Sequence[Awaitable[Any]]) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(call) for call in calls]


async def test_at_most_max_pending_calls_are_encoded_and_the_others_wait() -> None:
    storage, serde = PausedStorage(), CountingSerde()
    app = Dibs(max_pending=10)
    with app.override_storage(storage):
        async with app:
            queue = app.queue("q", serde=serde)
            calls = start([queue.enqueue(number) for number in range(35)])
            await iterate()
            slots = slots_of(app)
            assert (serde.encoded, slots.pending, slots.waiting, slots.throttled) == (10, 10, 25, 25)

            storage.resumed.set()
            tickets = await asyncio.gather(*calls)

            assert [ticket.revision for ticket in tickets] == sorted(ticket.revision for ticket in tickets)
            assert [data for _, data in storage.sent] == [str(number).encode() for number in range(35)]
            assert (slots.pending, slots.waiting) == (0, 0)


@pytest.mark.parametrize("verb", ["task", "queue", "task and wait", "queue and wait"])
async def test_each_way_to_enqueue_one_job_takes_a_slot(verb: str) -> None:
    storage, app = PausedStorage(), Dibs(max_pending=2)
    task = app.task(queue="tasks")(double)
    enqueue: dict[str, Callable[[int], Awaitable[Any]]] = {
        "task": task.enqueue,
        "queue": app.queue("q").enqueue,
        "task and wait": task.options(wait=0).enqueue_and_wait,
        "queue and wait": lambda number: app.queue("q").enqueue_and_wait(number, wait=0),
    }
    with app.override_storage(storage):
        async with app:
            calls = start([enqueue[verb](number) for number in range(5)])
            await iterate()
            assert (slots_of(app).pending, slots_of(app).waiting) == (2, 3)
            storage.resumed.set()
            await asyncio.gather(*calls, return_exceptions=True)
            assert len(storage.sent) == 5
            assert (slots_of(app).pending, slots_of(app).waiting) == (0, 0)


async def test_a_burst_starts_in_portions_so_that_no_iteration_of_the_loop_is_long() -> None:
    serde = CountingSerde()
    async with Dibs("memory:") as app:
        queue = app.queue("q", serde=serde)
        counting = asyncio.create_task(serde.count_iterations())
        await asyncio.gather(*(queue.enqueue(number) for number in range(20 * MAX_STARTS)))
        counting.cancel()

    assert max(serde.per_iteration) <= MAX_STARTS
    assert serde.encoded == 20 * MAX_STARTS


async def test_concurrent_callers_go_on_sharing_full_batches() -> None:
    """The calls of a round that wait for a portion join the batch of their round, and do not split it."""
    storage, app = BatchSizes(), Dibs()
    with app.override_storage(storage):
        async with app:

            async def caller() -> None:
                for number in range(40):
                    await app.queue("q").enqueue(number)

            await asyncio.gather(*(caller() for _ in range(60)))

    assert set(storage.sizes) == {60}


class BatchSizes(MemoryStorage):
    """A storage in memory that answers after an iteration of the event loop, and records its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        self.sizes.append(len(requests))
        await asyncio.sleep(0)
        return await super().enqueue(queue, requests, now=now)


async def test_calls_keep_their_order_when_new_ones_meet_those_that_got_their_turn() -> None:
    slots, started = CallSlots(max_pending=3), list[int]()

    async def call(number: int) -> None:
        turn = slots.acquire("q")
        try:
            if turn is not None:
                await turn
            started.append(number)
            await asyncio.sleep(0)
        finally:
            slots.release(turn)

    calls = []
    for number in range(200):
        calls.append(asyncio.create_task(call(number)))
        if number % 7 == 0:
            await asyncio.sleep(0)
    await asyncio.gather(*calls)

    assert started == list(range(200))


async def test_a_late_call_of_another_queue_waits_for_one_turn_only() -> None:
    storage, app = PausedStorage(), Dibs(max_pending=4)
    with app.override_storage(storage):
        async with app:
            busy, late = app.queue("busy"), app.queue("late")
            calls = start([busy.enqueue(number) for number in range(100)])
            await iterate()
            calls += start([late.enqueue(0)])
            await iterate()
            storage.resumed.set()
            await asyncio.gather(*calls)

    # 4 calls held the slots, and at most 4 others start in the portion of the late call.
    assert [queue for queue, _ in storage.sent].index("late") <= 8


async def test_calls_that_are_cancelled_in_the_line_leave_it() -> None:
    storage, app = PausedStorage(), Dibs(max_pending=2)
    with app.override_storage(storage):
        async with app:
            calls = start([app.queue("q").enqueue(number) for number in range(10)])
            await iterate()
            for call in calls[3:9]:
                call.cancel()
            await iterate()
            assert (slots_of(app).pending, slots_of(app).waiting) == (2, 2)
            storage.resumed.set()
            await asyncio.gather(*calls, return_exceptions=True)

            assert [data for _, data in storage.sent] == [b"0", b"1", b"2", b"9"]
            assert (slots_of(app).pending, slots_of(app).waiting) == (0, 0)


async def test_a_call_cancelled_as_it_gets_its_turn_gives_the_slot_back() -> None:
    slots = CallSlots(max_pending=1)
    held = await acquired(slots)
    turn = slots.acquire("q")
    assert turn is not None
    waiter = asyncio.create_task(wait_and_release(slots, turn))
    await iterate(2)
    slots.release(held)
    await asyncio.sleep(0)
    assert turn.done()
    waiter.cancel()
    await asyncio.wait([waiter])

    assert waiter.cancelled()
    assert (slots.pending, slots.waiting) == (0, 0)


async def acquired(slots: CallSlots) -> Any:
    turn = slots.acquire("q")
    if turn is not None:
        await turn
    return turn


async def wait_and_release(slots: CallSlots, turn: asyncio.Future[float]) -> None:
    try:
        await turn
    finally:
        slots.release(turn)


async def test_abandoned_places_are_removed_although_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limits, "MAX_ABANDONED", 5)
    slots = CallSlots(max_pending=1)
    await acquired(slots)
    live = slots.acquire("q")
    for _ in range(50):
        turn = slots.acquire("q")
        assert turn is not None
        turn.cancel()
        slots.release(turn)

    assert slots.waiting == 1
    assert len(slots._lines["q"].turns) <= 7
    assert live is slots._lines["q"].turns[0]


async def test_an_error_of_one_call_frees_its_slot() -> None:
    async with Dibs("memory:", max_pending=1) as app:
        queue = app.queue("q")
        answers = await asyncio.gather(
            *(queue.enqueue(number, priority=5000 if number % 2 else 0) for number in range(10)),
            return_exceptions=True,
        )

        assert [isinstance(answer, Refused) for answer in answers] == [False, True] * 5
        assert (slots_of(app).pending, slots_of(app).waiting) == (0, 0)


async def test_close_lets_the_calls_in_the_line_finish_first() -> None:
    storage, app = PausedStorage(), Dibs(max_pending=2)
    with app.override_storage(storage):
        await app.open()
        calls = start([app.queue("q").enqueue(number) for number in range(20)])
        await iterate()
        closing = asyncio.create_task(app.close())
        await iterate()
        with pytest.raises(NotRunning):
            await app.queue("q").enqueue("late")
        storage.resumed.set()

        assert len(await asyncio.gather(*calls)) == 20
        await closing


@pytest.mark.long
def test_calls_in_the_line_end_with_their_event_loop() -> None:
    app = Dibs(max_pending=2)

    async def main() -> list[asyncio.Future[Any]]:
        await app.open()
        calls = start([app.queue("q").enqueue(number) for number in range(20)])
        await iterate()
        return calls

    with app.override_storage(PausedStorage()):
        calls = asyncio.run(main())

    assert all(call.done() for call in calls)


async def test_the_time_in_the_line_counts_for_the_deadline() -> None:
    slots = CallSlots(1, 0.0, "redis://example")
    await acquired(slots)
    turns = [slots.acquire("mail") for _ in range(3)]
    with pytest.raises(StorageBusy, match=r"max_pending=1 .* 1 calls are pending and 3 wait") as caught:
        await cast("Any", turns[0])
    for turn in turns:
        with pytest.raises(StorageBusy):
            await cast("Any", turn)
        slots.release(turn)

    assert "nothing was written" in str(caught.value)
    assert (slots.pending, slots.waiting) == (1, 0)


async def test_a_turn_carries_the_deadline_of_its_call() -> None:
    slots = CallSlots(1, 60.0)
    held = await acquired(slots)
    before = asyncio.get_running_loop().time()
    turn = slots.acquire("q")
    slots.release(held)

    assert turn is not None
    assert before + 60 <= await turn <= asyncio.get_running_loop().time() + 60
    slots.release(turn)
    await slots.drain()


async def test_a_middleware_that_enqueues_does_not_wait_for_the_slots_of_its_callers() -> None:
    async with Dibs("memory:", max_pending=2) as app:
        app.middleware(enqueue=lambda queue, requests: Audited(app, queue, requests))
        await asyncio.gather(*(app.queue("q").enqueue(number) for number in range(20)))

        assert (await app.queue("audit").counts()).waiting == 20


class Audited:
    """A middleware that enqueues a job to the queue `audit` for each enqueue to another queue."""

    def __init__(self, app: Dibs, queue: str, requests: Sequence[EnqueueRequest]) -> None:
        self._app, self._queue, self._requests = app, queue, requests

    async def __aenter__(self) -> Sequence[EnqueueRequest]:
        if self._queue != "audit":
            await self._app.queue("audit").enqueue(self._queue)
        return self._requests

    async def __aexit__(self, *_: object) -> None: ...


@pytest.mark.parametrize("value", [0, -1, None, True, 1.5, "10"])
def test_max_pending_is_a_whole_number_from_one(value: Any) -> None:
    with pytest.raises(Refused, match="max_pending is") as caught:
        Dibs("memory:", max_pending=value)
    assert caught.value.field == "max_pending"


async def test_a_wrapped_storage_sees_no_more_than_max_pending_calls_at_a_time() -> None:
    storage = Overlap()
    app = Dibs(max_pending=7)
    with app.override_storage(cast("Storage", storage)):
        async with app:
            await asyncio.gather(*(app.queue(f"q{number % 5}").enqueue(number) for number in range(500)))

    assert 1 < storage.most <= 7


class Overlap(MemoryStorage):
    """A storage in memory that records the largest number of requests in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.most = self._now = 0

    async def enqueue(
        self, queue: str, requests: Sequence[EnqueueRequest], *, now: int | None = None
    ) -> list[EnqueueResult]:
        self._now += len(requests)
        self.most = max(self.most, self._now)
        try:
            await asyncio.sleep(0)
            return await super().enqueue(queue, requests, now=now)
        finally:
            self._now -= len(requests)
