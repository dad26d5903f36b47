"""Single calls that arrive together travel together, and never touch each other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import chain

import pytest

from dibs import BatchRefused, NotRunning, OutcomeUnknown, Refused
from dibs.client.connection import coalescing as batching
from dibs.client.connection.coalescing import Coalescer


class Wire:
    """Answers each item doubled, once it is let through; keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.senders: list[object] = []
        self.open = asyncio.Event()
        self.open.set()
        self.fails: list[BaseException] = []
        self.busy = 0

    async def send(self, items: list[int]) -> Sequence[int]:
        self.sent.append(items)
        self.senders.append(asyncio.current_task())
        self.busy += 1
        assert self.busy == 1, "one flush in flight"
        try:
            await self.open.wait()
        finally:
            self.busy -= 1
        if self.fails:
            raise self.fails.pop(0)
        return [item * 2 for item in items]


async def test_calls_of_one_moment_share_a_batch_and_each_gets_its_own_answer() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send)

    answers = await asyncio.gather(*(batcher.add(item) for item in range(5)))

    assert answers == [0, 2, 4, 6, 8]
    assert wire.sent == [[0, 1, 2, 3, 4]]


async def test_what_arrives_during_a_flush_is_the_next_batch() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send)
    wire.open.clear()
    first = asyncio.create_task(batcher.add(1))
    await until(lambda: bool(wire.sent))
    others = [asyncio.create_task(batcher.add(item)) for item in (2, 3)]
    await asyncio.sleep(0)
    wire.open.set()

    assert await asyncio.gather(first, *others) == [2, 4, 6]
    assert wire.sent == [[1], [2, 3]]


async def test_a_read_that_comes_singly_goes_by_itself_and_who_comes_meanwhile_is_the_next_batch() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send, read_only=True)
    assert await batcher.add(1) == 2
    wire.open.clear()
    first = asyncio.create_task(batcher.add(2))
    await until(lambda: len(wire.sent) == 2)
    others = [asyncio.create_task(batcher.add(item)) for item in (3, 4)]
    await asyncio.sleep(0)
    over = asyncio.create_task(batcher.drain())
    wire.open.set()

    assert await asyncio.gather(first, *others) == [4, 6, 8]
    await over
    assert wire.sent == [[1], [2], [3, 4]]
    assert [first] == [sender for sender in wire.senders if sender in {first, *others}]


async def test_a_read_by_itself_that_is_given_up_or_fails_leaves_those_behind_it_alone() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send, read_only=True)
    await batcher.add(1)
    for end in (asyncio.CancelledError, OutcomeUnknown):
        wire.open.clear()
        first = asyncio.create_task(batcher.add(2))
        await until(lambda: wire.sent[-1] == [2])
        behind = asyncio.create_task(batcher.add(3))
        await asyncio.sleep(0)
        if end is asyncio.CancelledError:
            first.cancel()
        else:
            wire.fails.append(OutcomeUnknown())
        wire.open.set()

        with pytest.raises(end):
            await first
        assert await behind == 6
    await batcher.drain()
    assert wire.sent == [[1], [2], [3], [2], [3]]


async def test_a_batch_is_bounded_in_items() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send)

    await asyncio.gather(*(batcher.add(item) for item in range(2_500)))

    assert [len(batch) for batch in wire.sent] == [1000, 1000, 500]
    assert list(chain.from_iterable(wire.sent)) == list(range(2_500))


async def test_a_batch_is_bounded_in_bytes_but_never_empty() -> None:
    wire = Wire()
    half = batching.MOST_BYTES // 2
    batcher = Coalescer(wire.send, lambda item: item)

    await asyncio.gather(*(batcher.add(size) for size in (half, half, half, batching.MOST_BYTES * 2, 1)))

    assert [len(batch) for batch in wire.sent] == [2, 1, 1, 1]


async def test_a_cancelled_caller_is_not_sent_and_leaves_its_neighbours_alone() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send)
    one, two, three = (asyncio.create_task(batcher.add(item)) for item in (1, 2, 3))
    await asyncio.sleep(0)
    two.cancel()

    assert [await one, await three] == [2, 6]
    assert wire.sent == [[1, 3]]


async def test_a_caller_cancelled_in_flight_leaves_its_neighbours_alone() -> None:
    wire = Wire()
    wire.open.clear()
    batcher = Coalescer(wire.send)
    first, second = (asyncio.create_task(batcher.add(item)) for item in (1, 2))
    await until(lambda: bool(wire.sent))
    first.cancel()
    wire.open.set()

    assert await second == 4
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_each_caller_gets_an_exception_object_of_its_own() -> None:
    wire = Wire()
    wire.fails = [OutcomeUnknown("reply lost")]
    batcher = Coalescer(wire.send)

    errors = await asyncio.gather(*(batcher.add(item) for item in range(3)), return_exceptions=True)

    assert [(type(error), str(error)) for error in errors] == [(OutcomeUnknown, "reply lost")] * 3
    assert len({id(error) for error in errors}) == 3
    assert await batcher.add(1) == 2, "the next batch is as good as new"


class Picky(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one}{two}")


async def test_an_exception_that_cannot_be_copied_is_told_all_the_same() -> None:
    wire = Wire()
    wire.fails = [Picky(4, 2)]

    with pytest.raises(OutcomeUnknown, match="Picky: 42"):
        await Coalescer(wire.send).add(1)


async def test_a_refused_neighbour_is_sent_home_alone() -> None:
    """Nothing of a refused batch was written, so the others go again without the one at fault."""
    wire = Wire()
    wire.fails = [BatchRefused("1 of 3", [Refused("too long", field="id", index=1)])]
    batcher = Coalescer(wire.send)

    answers = await asyncio.gather(*(batcher.add(item) for item in (1, 2, 3)), return_exceptions=True)

    assert [answers[0], answers[2]] == [2, 6]
    assert isinstance(answers[1], Refused)
    assert answers[1].field == "id"
    assert wire.sent == [[1, 2, 3], [1, 3]]


async def test_a_refusal_that_names_nobody_is_everybodys() -> None:
    wire = Wire()
    wire.fails = [BatchRefused("all", [Refused("the queue is")])]
    batcher = Coalescer(wire.send)

    answers = await asyncio.gather(batcher.add(1), batcher.add(2), return_exceptions=True)

    assert [type(answer) for answer in answers] == [BatchRefused, BatchRefused]


async def test_when_the_loop_ends_nobody_is_left_waiting() -> None:
    wire = Wire()
    wire.open.clear()
    batcher = Coalescer(wire.send)
    first = asyncio.create_task(batcher.add(1))
    await until(lambda: bool(wire.sent))
    second = asyncio.create_task(batcher.add(2))
    await asyncio.sleep(0)
    assert batcher._flushing is not None
    batcher._flushing.cancel()

    results = await asyncio.gather(first, second, return_exceptions=True)
    assert [type(result) for result in results] == [OutcomeUnknown, NotRunning]


async def test_drain_waits_for_everything_under_way() -> None:
    wire = Wire()
    batcher = Coalescer(wire.send)
    call = asyncio.create_task(batcher.add(1))
    await asyncio.sleep(0)

    await batcher.drain()
    await asyncio.sleep(0)

    assert call.done()


async def until(holds: Callable[[], bool]) -> None:
    """Let the others go on, step by step."""
    while not holds():  # noqa: ASYNC110 - the code under test has no event for it
        await asyncio.sleep(0)
