"""A wait for a new job begins without a read of its state, if the storage watches its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from dibs import Dibs, Queue, Retention
from dibs_conformance.servers import RedisServer
from tests.client.verb_counts import counted

SOON = 120


@pytest.fixture
async def app(redis_server: RedisServer) -> AsyncIterator[Dibs]:
    async with Dibs(f"{redis_server.url}?prefix=waits-without-reads") as app:
        # The first lease of a queue makes the secret of its messages, and its first wait begins to listen.
        await app.storage.grant(["q"], 1, "first")
        await app.storage.wait(["q"], for_="ids", ids=["unknown"], timeout=0.01)
        # A wait that does not know the retention of its queue begins with a read.
        await app.queue("q")._client.retention()
        # Watches begin after one message.
        first = await app.queue("q").enqueue(0)
        await complete_next(app.queue("q"), "first")
        await app.storage.wait(["q"], for_="ids", ids=[first.id], since={"q": "0"}, timeout=SOON)
        yield app


@pytest.fixture
def calls(app: Dibs, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    return counted(app.storage, monkeypatch)


async def complete_next(queue: Queue, value: object) -> None:
    async with queue.receive(max_jobs=1, wait=SOON) as claims:
        await (await anext(claims)).complete(value)


async def test_a_wait_for_a_new_job_reads_nothing(queue: Queue, calls: Counter[str]) -> None:
    waiting = asyncio.create_task(queue.enqueue_and_wait(1, wait=SOON))
    await complete_next(queue, "done")

    assert "done" == await waiting
    assert 0 == calls["get"]


async def test_an_end_that_no_message_reported_is_read(app: Dibs, calls: Counter[str]) -> None:
    """The storage did not listen to this queue when the job ended."""
    other = app.queue("unheard")
    ticket = await other.enqueue(1)
    await complete_next(other, "done")

    assert "done" == await ticket.result(SOON)
    assert 1 == calls["get"]


@pytest.mark.parametrize("case", ["updated", "found by revision", "short retention", "unknown retention"])
async def test_other_waits_begin_with_a_read(queue: Queue, calls: Counter[str], case: str) -> None:
    if case == "unknown retention":
        await queue.configure(retention=Retention())
    retention = Retention(completed=1) if case == "short retention" else Retention()
    ticket = await queue.enqueue(1, id=case, retention=retention)
    if case == "updated":
        ticket = await queue.enqueue(2, id=case)
    if case == "found by revision":
        ticket = queue.ticket(case, ticket.revision)
    waiting = asyncio.create_task(ticket.result(SOON))
    while not calls["get"]:  # noqa: ASYNC110 - the waiter sends no event
        await asyncio.sleep(0)
    await complete_next(queue, "done")

    assert "done" == await waiting


async def test_an_end_of_an_earlier_run_of_the_id_is_not_the_result(queue: Queue) -> None:
    first = await queue.enqueue(1, id="again")
    await complete_next(queue, "first")
    second = await queue.enqueue(2, id="again")
    waiting = asyncio.create_task(second.result(SOON))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await complete_next(queue, "second")

    assert "second" == await waiting
    assert second.revision > first.revision
