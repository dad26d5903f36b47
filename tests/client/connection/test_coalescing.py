"""Concurrent single calls share batches, and the error of one call does not affect the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import msgspec
import pytest

from dibs import BatchRefused, Dibs, NotRunning, OutcomeUnknown, Refused
from dibs.client.connection import coalesced_calls, pending_calls
from dibs.client.connection.coalescing import Coalescer


class FakeStorage:
    """Answers each item doubled while `replies` is set, and records each batch and the task that sent it."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.senders: list[object] = []
        self.replies = asyncio.Event()
        self.replies.set()
        self.errors: list[BaseException] = []
        self.in_flight = 0

    async def send(self, items: list[int]) -> Sequence[int]:
        self.sent.append(items)
        self.senders.append(asyncio.current_task())
        self.in_flight += 1
        assert self.in_flight == 1, "at most one flush is in flight"
        try:
            await self.replies.wait()
        finally:
            self.in_flight -= 1
        if self.errors:
            raise self.errors.pop(0)
        return [item * 2 for item in items]


async def test_concurrent_calls_share_a_batch_and_each_gets_its_own_answer() -> None:
    storage = FakeStorage()
    coalescer = Coalescer(storage.send)

    answers = await asyncio.gather(*(coalescer.add(item) for item in range(5)))

    assert answers == [0, 2, 4, 6, 8]
    assert storage.sent == [[0, 1, 2, 3, 4]]


async def test_calls_during_a_flush_form_the_next_batch() -> None:
    storage = FakeStorage()
    coalescer = Coalescer(storage.send)
    storage.replies.clear()
    first = asyncio.create_task(coalescer.add(1))
    await until(lambda: bool(storage.sent))
    others = [asyncio.create_task(coalescer.add(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    storage.replies.set()

    assert await asyncio.gather(first, *others) == [2, 4, 6]
    assert storage.sent == [[1], [2, 3]]


async def test_a_batch_is_limited_in_items() -> None:
    storage = FakeStorage()
    coalescer = Coalescer(storage.send)

    await asyncio.gather(*(coalescer.add(item) for item in range(2_500)))

    assert [len(batch) for batch in storage.sent] == [1000, 1000, 500]
    assert list(chain.from_iterable(storage.sent)) == list(range(2_500))


async def test_a_batch_is_limited_in_bytes_but_has_at_least_one_item() -> None:
    storage = FakeStorage()
    half = pending_calls.MAX_BATCH_BYTES // 2
    coalescer = Coalescer(storage.send, lambda item: item)

    await asyncio.gather(
        *(coalescer.add(size) for size in (half, half, half, pending_calls.MAX_BATCH_BYTES * 2, 1))
    )

    assert [len(batch) for batch in storage.sent] == [2, 1, 1, 1]


async def test_a_call_cancelled_before_the_flush_is_not_sent() -> None:
    storage = FakeStorage()
    coalescer = Coalescer(storage.send)
    one, two, three = (asyncio.create_task(coalescer.add(item)) for item in (1, 2, 3))
    await asyncio.sleep(0)
    two.cancel()

    assert [await one, await three] == [2, 6]
    assert storage.sent == [[1, 3]]


async def test_a_call_cancelled_in_flight_does_not_affect_its_batch() -> None:
    storage = FakeStorage()
    storage.replies.clear()
    coalescer = Coalescer(storage.send)
    first, second = (asyncio.create_task(coalescer.add(item)) for item in (1, 2))
    await until(lambda: bool(storage.sent))
    first.cancel()
    storage.replies.set()

    assert await second == 4
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_each_caller_gets_an_exception_object_of_its_own() -> None:
    storage = FakeStorage()
    storage.errors = [OutcomeUnknown("reply lost")]
    coalescer = Coalescer(storage.send)

    errors = await asyncio.gather(*(coalescer.add(item) for item in range(3)), return_exceptions=True)

    assert [(type(error), str(error)) for error in errors] == [(OutcomeUnknown, "reply lost")] * 3
    assert len({id(error) for error in errors}) == 3
    assert await coalescer.add(1) == 2, "the next batch succeeds"


class NotCopyable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one}{two}")


async def test_an_exception_that_cannot_be_copied_becomes_outcome_unknown() -> None:
    storage = FakeStorage()
    storage.errors = [NotCopyable(4, 2)]

    with pytest.raises(OutcomeUnknown, match="NotCopyable: 42"):
        await Coalescer(storage.send).add(1)


async def test_only_the_refused_call_of_a_batch_fails() -> None:
    """The storage wrote no item of the refused batch, so the other items are sent again."""
    storage = FakeStorage()
    storage.errors = [BatchRefused("1 of 3", [Refused("too long", field="id", index=1)])]
    coalescer = Coalescer(storage.send)

    answers = await asyncio.gather(*(coalescer.add(item) for item in (1, 2, 3)), return_exceptions=True)

    assert [answers[0], answers[2]] == [2, 6]
    assert isinstance(answers[1], Refused)
    assert answers[1].field == "id"
    assert storage.sent == [[1, 2, 3], [1, 3]]


async def test_a_refusal_without_an_index_fails_every_call_of_the_batch() -> None:
    storage = FakeStorage()
    storage.errors = [BatchRefused("all", [Refused("the queue is")])]
    coalescer = Coalescer(storage.send)

    answers = await asyncio.gather(coalescer.add(1), coalescer.add(2), return_exceptions=True)

    assert [type(answer) for answer in answers] == [BatchRefused, BatchRefused]


@pytest.mark.parametrize("error", [TypeError("cannot encode"), Refused("the server refuses a value")])
async def test_an_error_of_one_item_does_not_fail_its_neighbours(error: Exception) -> None:
    """The storage cannot say which item is bad, so each item is sent alone."""

    class OneBadItem(FakeStorage):
        async def send(self, items: list[int]) -> Sequence[int]:
            if 2 in items:
                self.sent.append(items)
                raise error
            return await super().send(items)

    storage = OneBadItem()
    coalescer = Coalescer(storage.send)
    answers = await asyncio.gather(*(coalescer.add(item) for item in (1, 2, 3)), return_exceptions=True)

    assert [2, type(error), 6] == [answers[0], type(answers[1]), answers[2]]
    assert storage.sent == [[1, 2, 3], [1], [2], [3]]


@pytest.mark.parametrize(
    "error", [msgspec.ValidationError("bad reply"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad reply")]
)
async def test_a_reply_that_cannot_be_decoded_is_not_asked_for_again(error: Exception) -> None:
    storage = FakeStorage()
    storage.errors.append(error)
    coalescer = Coalescer(storage.send)

    answers = await asyncio.gather(coalescer.add(1), coalescer.add(2), return_exceptions=True)

    assert [type(error)] * 2 == [type(answer) for answer in answers]
    assert storage.sent == [[1, 2]]


async def test_calls_fail_when_the_loop_ends() -> None:
    storage = FakeStorage()
    storage.replies.clear()
    coalescer = Coalescer(storage.send)
    first = asyncio.create_task(coalescer.add(1))
    await until(lambda: bool(storage.sent))
    second = asyncio.create_task(coalescer.add(2))
    await asyncio.sleep(0)
    assert coalescer._flushing is not None
    coalescer._flushing.cancel()

    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown, NotRunning]


async def test_drain_waits_for_the_calls_in_flight() -> None:
    storage = FakeStorage()
    coalescer = Coalescer(storage.send)
    call = asyncio.create_task(coalescer.add(1))
    await asyncio.sleep(0)

    await coalescer.drain()
    await asyncio.sleep(0)

    assert call.done()


async def until(condition: Callable[[], bool]) -> None:
    """Run the event loop, one iteration at a time, until `condition` returns True."""
    while not condition():  # noqa: ASYNC110 - the code under test has no event for it
        await asyncio.sleep(0)


async def test_names_that_were_used_once_leave_no_coalescer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coalesced_calls, "MAX_COALESCERS", 10)
    async with Dibs("memory:") as app:
        for number in range(100):
            await app.queue(f"q{number}").get("a")
        pending = [asyncio.create_task(app.queue(f"p{number}").get("a")) for number in range(20)]
        await asyncio.gather(*pending)
        await app.queue("last").get("a")
        calls = app._storage_handle.opened.coalesced

        assert 10 >= len(calls._gets)
