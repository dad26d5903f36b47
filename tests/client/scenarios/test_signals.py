"""Signals: a handler waits for a value that another program sends to its job."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from dibs import Dibs, JobFailed, Queue, SignalTimeout, SignalWait, Ticket, current_job
from dibs.errors import Refused
from tests.background_worker import background_worker

LONG = 30


@dataclass
class Approval:
    by: str
    amount: int = 0


async def reach(ticket: Ticket[Any], state: str) -> None:
    """Wait until a job has a state."""
    async with asyncio.timeout(LONG):
        while (await ticket.status()).state != state:  # noqa: ASYNC110 - no event tells of a parked job
            await asyncio.sleep(0.01)


BEGUN: list[int] = []
CAUGHT: list[str] = []


async def charge() -> str:
    BEGUN.append(-1)
    return "charged"


async def approve(number: int) -> str:
    BEGUN.append(number)
    charged = await current_job().step("charge", charge)
    approval = await current_job().wait_for("approved", Approval, timeout="3d")
    return f"{charged} {approval.by} {current_job().attempt}"


async def read_two() -> list[str]:
    first = await current_job().wait_for("message", str)
    return [first, await current_job().wait_for("message", str)]


def wait_twice() -> str:
    try:
        return str(current_job().wait_for("approved", str, timeout=0.05))
    except SignalTimeout as late:
        CAUGHT.append(str(late))
    except Exception:  # noqa: BLE001 - a wait must pass this
        CAUGHT.append("stopped by an except Exception")
    return str(current_job().wait_for("approved", str))


async def give_up() -> None:
    await current_job().wait_for("approved", timeout=0.01)


async def read_amount() -> int:
    approval = await current_job().wait_for("approved", Approval)
    return int(approval.amount)


async def test_a_parked_job_goes_on_with_the_value(app: Dibs) -> None:
    order = app.task(approve)
    BEGUN.clear()
    async with background_worker(app):
        ticket = await order.enqueue(7)
        await reach(ticket, "parked")
        parked = await ticket.status()
        answer = await ticket.signal("approved", Approval("ada"))

        assert "charged ada 1" == await ticket.result(wait=LONG)
    assert "delivered" == answer
    assert [7, -1, 7] == BEGUN
    assert 0 == parked.attempts == parked.retries
    assert parked.waits_for == SignalWait(name="approved", number=1, until=parked.run_at)
    assert (await ticket.status()).waits_for is None
    assert "absent" == await order.queue.signal(ticket.id, "approved", Approval("bo"))


async def test_a_status_numbers_the_waits_of_one_name(app: Dibs) -> None:
    order, second = app.task(read_two), SignalWait(name="message", number=2, until=None)
    async with background_worker(app):
        ticket = await order.enqueue()
        await reach(ticket, "parked")
        await ticket.signal("message", "one")
        async with asyncio.timeout(LONG):
            while (await ticket.status()).waits_for != second:  # noqa: ASYNC110 - no event tells of a parked job
                await asyncio.sleep(0.01)


async def test_a_signal_may_come_before_anybody_waits(app: Dibs) -> None:
    order = app.task(read_two)
    ticket = await order.enqueue()
    assert ["delivered"] * 3 == [
        await ticket.signal("message", "one"),
        await ticket.signal("message", "two"),
        await ticket.signal("message.other", "three"),
    ]
    await app.work(until="empty", handle_signals=False)

    assert ["one", "two"] == await ticket.result(wait=LONG)


async def test_a_blocking_handler_waits_and_times_out(app: Dibs) -> None:
    order = app.task(wait_twice)
    async with background_worker(app):
        ticket = await order.enqueue()
        async with asyncio.timeout(LONG):
            while not CAUGHT:  # noqa: ASYNC110 - the handler runs on a thread
                await asyncio.sleep(0.01)
        await reach(ticket, "parked")
        await ticket.signal("approved", "late")

        assert "late" == await ticket.result(wait=LONG)
    assert {"no signal 'approved' came in time"} == set(CAUGHT)


async def test_an_uncaught_timeout_fails_the_job_at_once(app: Dibs) -> None:
    order = app.task(max_retries=5)(give_up)
    async with background_worker(app):
        ticket = await order.enqueue()
        with pytest.raises(JobFailed, match="approved") as failed:
            await ticket.result(wait=LONG)

    assert "permanent" == failed.value.error.kind


async def test_a_value_of_another_type_fails_the_job_and_counts_as_taken(app: Dibs) -> None:
    order = app.task(read_amount)
    async with background_worker(app):
        ticket = await order.enqueue()
        await ticket.signal("approved", [1])
        with pytest.raises(JobFailed, match="does not fit"):
            await ticket.result(wait=LONG)
        await order.queue.retry_failed(ticket.id)
        again = order.queue.ticket(ticket.id, (await order.queue.get(ticket.id)).revision)  # type: ignore[union-attr]
        await again.signal("approved", Approval("ada", 3))

        assert 3 == await again.result(wait=LONG)


async def test_signals_are_repeated_and_fill_a_job(any_queue: Queue) -> None:
    await any_queue.enqueue(1, id="a", delay="1h")
    answers = [
        await any_queue.signal("a", "s", "x" * 40_000, request_key="k"),
        await any_queue.signal("a", "s", "x" * 40_000, request_key="k"),
        await any_queue.signal("a", "s", "x" * 40_000),
        await any_queue.signal("b", "s"),
    ]
    status = await any_queue.get("a")

    assert ["delivered", "delivered", "full", "absent"] == answers
    assert status is not None
    assert ("waiting", 1) == (status.state, len(status.attributes))


async def test_bad_names_are_refused(any_queue: Queue) -> None:
    for name in ("", "x" * 97, "a\0"):
        with pytest.raises(Refused) as refused:
            await any_queue.signal("a", name)
        assert "name" == refused.value.field


def test_the_blocking_form_sends() -> None:
    queue = Dibs("memory:").queue("q").sync
    ticket = queue.enqueue(1, id="a", delay="1h")

    assert "delivered" == ticket.signal("s", 1)
    assert "absent" == queue.signal("b", "s")
