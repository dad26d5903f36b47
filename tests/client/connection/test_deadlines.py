"""The deadlines of coalesced calls, and the lanes for calls whose storage is busy with their id."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from dibs import OutcomeUnknown, StorageBusy
from dibs.client.connection.call_limits import CallTimeout
from dibs.client.connection.coalescing import Coalescer
from dibs.client.connection.pending_calls import Lanes
from dibs.storage.unsent import mark_unsent

SOON = CallTimeout(0.05, "the call", "fake:")
LATE = CallTimeout(60, "the call", "fake:")


class SlowStorage:
    """Answers items with themselves while `replies` is set. Raises StorageBusy for an id in `locked`."""

    def __init__(self, unsent: str = "") -> None:
        self.sent: list[list[str]] = []
        self.replies = asyncio.Event()
        self.locked: set[str] = set()
        self._unsent = unsent

    async def send(self, items: list[str]) -> Sequence[str]:
        self.sent.append(items)
        if self.locked & {item[0] for item in items}:
            await asyncio.sleep(0)
            raise StorageBusy(waits_for="a lock")
        try:
            await self.replies.wait()
        except asyncio.CancelledError as error:
            if self._unsent:
                mark_unsent(error, self._unsent)
            raise
        return items


def new_coalescer(storage: SlowStorage, timeout: CallTimeout) -> Coalescer[str, str]:
    """The id of an item is its first letter."""
    lanes: Lanes[str, str] = Lanes(lambda item: item[0], timeout, asyncio.Semaphore(3))
    return Coalescer(storage.send, timeout=timeout, lanes=lanes)


async def test_a_call_that_was_sent_may_have_happened_and_the_next_one_is_sent() -> None:
    storage = SlowStorage()
    coalescer = Coalescer(storage.send, timeout=SOON)

    with pytest.raises(OutcomeUnknown, match=r"the call was sent and had no answer within 0\.05 s"):
        await coalescer.add("a")
    storage.replies.set()
    assert await coalescer.add("b") == "b"
    assert storage.sent == [["a"], ["b"]]


async def test_a_call_that_the_storage_did_not_send_was_not_written() -> None:
    coalescer = Coalescer(SlowStorage(unsent="a connection").send, timeout=SOON)

    with pytest.raises(StorageBusy, match="it waited for a connection") as busy:
        await coalescer.add("a")
    assert busy.value.waits_for == "a connection"


async def test_a_call_behind_a_batch_in_flight_was_not_written() -> None:
    storage = SlowStorage()
    coalescer = Coalescer(storage.send, timeout=SOON)
    first = asyncio.create_task(coalescer.add("a"))
    await asyncio.sleep(0)
    later = [asyncio.create_task(coalescer.add("b")) for _ in range(3)]

    told = await asyncio.gather(first, *later, return_exceptions=True)
    assert [type(error) for error in told] == [OutcomeUnknown, StorageBusy, StorageBusy, StorageBusy]
    assert storage.sent == [["a"]]
    assert coalescer.is_idle


@pytest.mark.parametrize("calls", [1, 2])
async def test_a_read_changes_nothing_so_it_is_repeated(calls: int) -> None:
    storage = SlowStorage()
    storage.replies.set()
    coalescer = Coalescer(storage.send, read_only=True, timeout=SOON)
    assert await coalescer.add("a") == "a"  # the next single read is sent by its caller
    storage.replies.clear()

    told = await asyncio.gather(*(coalescer.add("b") for _ in range(calls)), return_exceptions=True)
    assert {StorageBusy} == {type(error) for error in told}
    storage.replies.set()
    assert await coalescer.add("c") == "c"


async def test_the_deadline_of_an_inline_read_is_told_from_a_cancellation() -> None:
    storage = SlowStorage()
    storage.replies.set()
    coalescer = Coalescer(storage.send, read_only=True, timeout=SOON)
    await coalescer.add("a")
    storage.replies.clear()
    told: list[BaseException] = []

    async def read_twice() -> None:
        try:
            await coalescer.add("b")
        except asyncio.CancelledError as error:
            told.append(error)
        try:
            await coalescer.add("c")  # in a task that was cancelled before
        except StorageBusy as error:
            told.append(error)

    reader = asyncio.create_task(read_twice())
    await asyncio.sleep(0)
    reader.cancel()
    await reader

    assert [asyncio.CancelledError, StorageBusy] == [type(error) for error in told]


@pytest.mark.parametrize("read_only", [False, True])
async def test_an_answer_after_the_deadline_is_an_answer(*, read_only: bool) -> None:
    """A storage may end its work when it is cancelled, and the next call has a deadline, too."""

    async def send(items: list[str]) -> Sequence[str]:
        try:
            await asyncio.sleep(0 if items == ["first"] else 60)
        except asyncio.CancelledError:
            if items == ["last"]:
                raise
        return items

    coalescer = Coalescer(send, read_only=read_only, timeout=SOON)

    assert await coalescer.add("first") == "first"
    assert await coalescer.add("second") == "second"
    with pytest.raises((OutcomeUnknown, StorageBusy)):
        await coalescer.add("last")
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_no_deadline_waits_for_the_answer() -> None:
    storage = SlowStorage()
    coalescer = Coalescer(storage.send)
    call = asyncio.create_task(coalescer.add("a"))
    await asyncio.sleep(0.1)
    storage.replies.set()

    assert await call == "a"


async def test_only_the_calls_for_a_locked_id_wait_and_they_keep_their_order() -> None:
    storage = SlowStorage()
    storage.replies.set()
    storage.locked = {"x"}
    coalescer = new_coalescer(storage, LATE)
    names = [f"{letter}{number}" for number in range(3) for letter in "abcxdef"]
    locked = {name: asyncio.create_task(coalescer.add(name)) for name in names if name[0] == "x"}

    others = [name for name in names if name[0] != "x"]
    assert await asyncio.gather(*(coalescer.add(name) for name in others)) == others
    assert not [name for name, call in locked.items() if call.done()]
    locked["x3"] = asyncio.create_task(coalescer.add("x3"))
    await coalescer.add("g0")
    storage.locked.clear()
    assert await asyncio.gather(*locked.values()) == list(locked)
    await coalescer.drain()

    written = [batch for batch in storage.sent if batch[0][0] == "x" and "x1" in batch]
    assert written[-1] == ["x1", "x2", "x3"]
    assert coalescer.is_idle


async def test_calls_for_a_locked_id_end_at_their_deadline() -> None:
    storage = SlowStorage()
    storage.replies.set()
    storage.locked = {"x"}
    coalescer = new_coalescer(storage, SOON)

    told = await asyncio.gather(*(coalescer.add(f"x{n}") for n in range(3)), return_exceptions=True)
    assert {StorageBusy} == {type(error) for error in told}
    assert "it waited for a lock" in str(told[0])
    attempts = len(storage.sent)
    await coalescer.drain()
    storage.locked.clear()
    assert await coalescer.add("x3") == "x3"

    assert storage.sent[attempts:] == [["x3"]]


async def test_a_lane_without_a_reply_says_that_its_call_may_have_happened() -> None:
    storage = SlowStorage()
    storage.locked = {"x"}
    coalescer = new_coalescer(storage, SOON)
    call = asyncio.create_task(coalescer.add("x"))
    while len(storage.sent) < 2:  # noqa: ASYNC110 - the code under test has no event for it
        await asyncio.sleep(0)
    storage.locked.clear()

    with pytest.raises(OutcomeUnknown):
        await call


async def test_the_end_of_the_event_loop_ends_the_calls_in_lanes() -> None:
    storage = SlowStorage()
    storage.locked = {"x"}
    coalescer = new_coalescer(storage, LATE)
    call = asyncio.create_task(coalescer.add("x"))
    while len(storage.sent) < 2:  # noqa: ASYNC110 - the code under test has no event for it
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task(), call}:
        task.cancel()

    with pytest.raises(Exception, match="the event loop ended"):
        await call
