"""The last progress of a run: its outcome keeps it, tickets and feeds end with it, on each storage."""

from __future__ import annotations

import asyncio
from typing import Any

from dibs import Queue
from dibs.client.claim import Claim
from tests.client.manual_claims import claimed


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
