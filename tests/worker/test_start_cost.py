"""The cost of a worker's start, which grows with the number of its tasks, and not with the square of it.

The cost is the number of Python calls. It varies a little, because waits for wake-ups restart by time.
"""

from __future__ import annotations

import asyncio
import sys
from types import FrameType

import pytest

from dibs import Dibs

SOME, MORE = 400, 1600


async def probe() -> None: ...


async def calls_until_the_first_job(tasks: int) -> int:
    """Return the number of calls from the start of a worker until it has run a job."""
    app, calls = Dibs("memory:"), 0
    for number in range(tasks):
        app.task(queue=f"periodic-{number}", cron="0 0 1 1 *")(probe)

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        async with app, asyncio.TaskGroup() as group:
            ticket = await app.task(queue="probe")(probe).enqueue()
            group.create_task(app.work())
            await ticket.result(wait=300)
            app.stop()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.long
async def test_four_times_as_many_tasks_cost_about_four_times_as_much() -> None:
    some, more = await calls_until_the_first_job(SOME), await calls_until_the_first_job(MORE)

    # Four times as many tasks cost 13 times as many calls when each step looked at all queues.
    assert more < 8 * some, f"{some} calls with {SOME} tasks, {more} with {MORE}"
