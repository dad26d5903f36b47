"""Ten thousand concurrent calls take few round trips on every storage, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from dibs import Dibs, JsonSerde, Queue, Refused, Ticket
from dibs.client.connection.pending_calls import MAX_BATCH_ITEMS
from dibs.model.limits import MIB
from tests.client.verb_counts import counted

CALLS = 10_000


async def test_ten_thousand_calls_take_a_round_trip_for_a_thousand(
    any_app: Dibs, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    await any_queue.counts()
    calls = counted(any_app.storage, monkeypatch)
    tickets = await asyncio.gather(*(any_queue.enqueue(number) for number in range(CALLS)))

    # The first call is sent alone if no other call is in flight.
    assert CALLS // MAX_BATCH_ITEMS <= calls["enqueue"] <= CALLS // MAX_BATCH_ITEMS + 1
    assert len({ticket.id for ticket in tickets}) == CALLS
    revisions = [ticket.revision for ticket in tickets]
    assert revisions == sorted(revisions), "in the order of the calls"
    assert (await any_queue.counts()).waiting == CALLS

    calls.clear()
    states = await asyncio.gather(*(ticket.status() for ticket in tickets[: MAX_BATCH_ITEMS + 1]))
    assert {status.state for status in states} == {"waiting"}
    assert calls == {"get": 2}


class Slow(JsonSerde):
    """A serde that encodes one of the values slowly."""

    def encode(self, value: Any) -> bytes:
        if value == {"text": "slow"}:
            sum(range(1_000_000))
        return super().encode(value)


async def test_one_that_is_slow_large_refused_or_gives_up_harms_no_other(
    any_app: Dibs, any_queue: Queue
) -> None:
    queue = any_app.queue(f"{any_queue.name}-slow", serde=Slow())
    strange: dict[int, tuple[Any, dict[str, Any]]] = {
        10: ({"text": "slow"}, {}),
        20: ("x" * (MIB - 2), {}),
        30: ("x" * MIB, {}),
        40: (float("nan"), {}),
        50: ("unknown setting", {"prio": 1}),
        60: ("no such priority", {"priority": 5000}),
        70: ("no attribute", {"attributes": {"a": "\0"}}),
        80: ("gives up", {}),
        90: ("gives up", {}),
    }

    def call(number: int) -> asyncio.Task[Ticket[Any]]:
        data, settings = strange.get(number, (number, {}))
        return asyncio.create_task(queue.enqueue(data, **settings))

    calls = [call(number) for number in range(1000)]
    calls[80].cancel()
    await asyncio.sleep(0)
    calls[90].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    kinds = Counter(type(answer).__name__ for answer in answers)

    assert {30, 40, 50, 60, 70} == {n for n, answer in enumerate(answers) if isinstance(answer, Refused)}
    assert kinds == {"Ticket": 993, "Refused": 5, "CancelledError": 2}
    # The request of a cancelled call may have been sent already.
    assert (await queue.counts()).waiting in {993, 994}
