"""The sleep of a wait: woken before it, during it, or ended by its timer."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dibs.storage.sleeper import Sleeper

PATIENCE = 30.0


async def test_a_sleep_ends_when_it_is_woken() -> None:
    sleeper = Sleeper()
    asleep = asyncio.create_task(sleeper.sleep(None))
    await asyncio.sleep(0)
    sleeper.wake()

    assert await asyncio.wait_for(asleep, PATIENCE)


async def test_who_was_woken_before_does_not_sleep() -> None:
    sleeper = Sleeper()
    sleeper.wake()

    assert await asyncio.wait_for(sleeper.sleep(None), PATIENCE)


async def test_a_sleep_ends_by_itself_and_says_so() -> None:
    assert [False, False] == [await Sleeper().sleep(0.01), await Sleeper().sleep(-1.0)]


async def test_a_sleep_that_was_cancelled_leaves_the_next_to_sleep() -> None:
    sleeper = Sleeper()
    asleep = asyncio.create_task(sleeper.sleep(PATIENCE))
    await asyncio.sleep(0)
    asleep.cancel()
    with suppress(asyncio.CancelledError):
        await asleep

    assert not await sleeper.sleep(0.01)


async def test_who_was_woken_while_it_was_cancelled_knows_it_afterwards() -> None:
    sleeper = Sleeper()
    asleep = asyncio.create_task(sleeper.sleep(PATIENCE))
    await asyncio.sleep(0)
    asleep.cancel()
    sleeper.wake()
    with suppress(asyncio.CancelledError):
        await asleep

    assert await sleeper.sleep(PATIENCE)
