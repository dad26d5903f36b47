"""@platformatic/job-queue: events, the reaper, storages and serdes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from dibs import (
    ConfigurationError,
    Dibs,
    JsonSerde,
    MessagePackSerde,
    NotRunning,
    Queue,
    open_storage,
)
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, Fail, HandOff, Release, RetryLater, Settlement
from tests.lineage import scripted_handlers
from tests.lineage.protocol_client import ProtocolClient, fence_of
from tests.lineage.scripted_handlers import claim_one, run_until_empty, set_handler

# -- events ------------------------------------------------------------------------------------------------


async def test_events_cross_connections(storage_url: str, app: Dibs, queue: Queue) -> None:
    """Another app on the same storage receives all events, also of retries and cancels."""
    if not app.storage.capabilities.shared:
        storage_url = app.url
    async with (
        asyncio.timeout(scripted_handlers.TIMEOUT),
        Dibs(storage_url) as other,
        other.queue("q").events() as events,
    ):
        await queue.enqueue(1, id="a")
        await (await claim_one(queue)).retry(delay=0)
        await queue.cancel("a")
        heard = [await anext(events), await anext(events)]

    assert [("retried", 1), ("cancelled", 0)] == [(event.kind, event.attempt) for event in heard]


async def test_every_event_has_a_name_of_its_own(queue: Queue) -> None:
    """The events enqueued, failing and requeued are called queued, retried and released in dibs."""
    await queue.configure(log_level="all")
    for end in ("complete", "fail", "retry", "release"):
        await queue.enqueue(1, id=end)
        claim = await claim_one(queue)
        verb = getattr(claim, end)
        await (verb("no") if end == "fail" else verb())
        await queue.forget(end)
    await queue.enqueue(1, id="cancel")
    await queue.cancel("cancel")

    kinds = [event.kind for event in await scripted_handlers.read_events(queue, 19)]
    for kind in ("queued", "claimed", "completed", "failed", "retried", "released", "forgotten", "cancelled"):
        assert kind in kinds


# -- the reaper --------------------------------------------------------------------------------------------


async def test_any_number_may_reap_and_need_no_leader(protocol: ProtocolClient) -> None:
    """With concurrent reaps each job is reaped once; a reap without stalled jobs returns an empty list."""
    for number in range(20):
        await protocol.enqueue(f"{number:02}")
    await protocol.new_lease(10)
    await protocol.claim()
    protocol.now += 10
    found = await asyncio.gather(*(protocol.reap(7) for _ in range(5)))
    while rest := await protocol.reap(7):
        found.append(rest)

    ids = [reaped.id for part in found for reaped in part]
    assert (20, 20) == (len(ids), len(set(ids)))


async def test_a_reap_never_takes_from_a_new_holder(protocol: ProtocolClient) -> None:
    """The reap checks state, fence and expiry in one atomic step."""
    await protocol.enqueue()
    await protocol.claim_one(await protocol.new_lease(10))
    protocol.now += 10
    await protocol.reap()
    held = await protocol.claim_one(await protocol.new_lease(1000))

    assert [] == await protocol.reap()
    assert held == await protocol.current()


async def test_a_reaper_that_begins_late_finds_everything(protocol: ProtocolClient, storage_url: str) -> None:
    """A reap needs no earlier events and no registration of workers."""
    await protocol.enqueue()
    await protocol.claim_one(await protocol.new_lease(10))
    protocol.now += 1_000_000_000

    async with open_storage(storage_url, clock="manual") as late:
        protocol.storage = late
        assert ["a"] == [reaped.id for reaped in await protocol.reap()]


async def test_the_last_writer_does_not_win(protocol: ProtocolClient) -> None:
    """If two workers ran a job, only the current holder can settle it."""
    await protocol.enqueue()
    original = await protocol.stall()
    again = await protocol.claim_one()

    assert "done" == (await protocol.settle(again, Complete(result=b"2"))).status
    for how in (Complete(result=b"1"), Fail(error=Error(type="x")), Cancelled(), Release(), HandOff()):
        assert "lost" == (await protocol.settle(original, how)).status
    assert b"2" == (await protocol.outcome()).result
    assert ["stalled", "completed"] == await protocol.event_kinds()


async def test_an_end_may_be_told_twice(protocol: ProtocolClient) -> None:
    """Promise 7: settle by fence can be repeated. The same action replies done, another replies lost."""
    await protocol.enqueue()
    job = await protocol.claim_one()
    words = [(await protocol.settle(job, how)).status for how in (Complete(), Complete(), Cancelled())]

    assert ["done", "done", "lost"] == words


async def test_a_stall_is_an_attempt(protocol: ProtocolClient) -> None:
    await protocol.enqueue()
    for attempt in (1, 2, 3):
        assert attempt == (await protocol.stall()).attempts

    assert (3, 3) == ((await protocol.current()).attempts, (await protocol.current()).stalls)


# -- storages and serdes -----------------------------------------------------------------------------------


async def test_one_name_is_one_queue(app: Dibs) -> None:
    """Two handles of the same name share the jobs of the queue; names are case-sensitive."""
    await app.queue("q").enqueue(1, id="a")

    assert await app.queue("q").get("a") is not None
    assert [] == [status async for status in app.queue("Q").list("waiting")]


@pytest.mark.parametrize("serde", [JsonSerde(), MessagePackSerde()], ids=lambda serde: str(serde.name))
async def test_a_serde_of_ones_own_survives_a_retry(
    app: Dibs, record: scripted_handlers.HandlerRecord, serde: Any
) -> None:
    """Jobs are found by id, not by their bytes: after a retry there is one job with its payload."""
    queue = app.queue("own", serde=serde)
    set_handler(queue)
    ticket = await queue.enqueue({"fail": 1, "return": "é"}, id="a")
    await run_until_empty(app)

    assert "é" == await ticket.result(0)
    [slot] = await app.storage.get("own", ["a"])
    assert slot.outcome is not None
    assert serde.encode("é") == slot.outcome.result
    assert (0, 0) == ((await queue.counts()).waiting, (await queue.counts()).active)
    with pytest.raises(ConfigurationError):
        app.queue("own", serde=JsonSerde())


async def test_a_closed_storage_says_so(storage_url: str) -> None:
    storage = open_storage(storage_url)
    with pytest.raises(NotRunning):
        await storage.counts(["q"])
    async with storage:
        await storage.counts(["q"])
    with pytest.raises(NotRunning):
        await storage.counts(["q"])


async def test_an_enqueue_is_one_step_however_many_contend(protocol: ProtocolClient) -> None:
    """With 100 concurrent enqueues of one id under Reject, one is queued."""
    from dibs import Reject

    answers = await asyncio.gather(*(protocol.enqueue("a", Reject()) for _ in range(100)))

    assert 1 == [answer.status for answer in answers].count("queued")
    assert 99 == [answer.status for answer in answers].count("duplicate")


async def test_a_settlement_of_many_is_in_order_and_each_by_itself(protocol: ProtocolClient) -> None:
    for id in "abc":
        await protocol.enqueue(id)
    a, b, c = await protocol.claim()
    batch = [
        Settlement(id="b", fence=fence_of(b), action=RetryLater(delay=0)),
        Settlement(id="a", fence=fence_of(a) + 10**9, action=Complete()),
        Settlement(id="c", fence=fence_of(c), action=Complete(result=b"1")),
    ]
    answers = await protocol.storage.settle("q", batch, now=protocol.now)

    assert ["returned", "lost", "done"] == [answer.status for answer in answers]


def test_no_driver_is_loaded_that_the_place_does_not_need(storage_url: str) -> None:
    """The module of a storage is imported when the storage is opened."""
    scheme = storage_url.partition(":")[0]
    drivers = {"redis": "psycopg", "postgresql": "redis"}
    code = f"import sys, dibs; dibs.open_storage({storage_url!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert drivers.get(scheme, "psycopg") not in done.stdout.split()
