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
from tests.lineage import actors
from tests.lineage.actors import claimed, play, work
from tests.lineage.clerk import Clerk, fence_of

# -- events ------------------------------------------------------------------------------------------------


async def test_events_cross_connections(storage_url: str, app: Dibs, queue: Queue) -> None:
    """Another app at the same place, in whatever process, hears of all, also of retries and cancels."""
    if not app.storage.capabilities.shared:
        storage_url = app.url
    async with asyncio.timeout(actors.SOON), Dibs(storage_url) as other, other.queue("q").events() as events:
        await queue.enqueue(1, id="a")
        await (await claimed(queue)).retry(delay=0)
        await queue.cancel("a")
        heard = [await anext(events), await anext(events)]

    assert [("retried", 1), ("cancelled", 0)] == [(event.kind, event.attempt) for event in heard]


async def test_every_event_has_a_name_of_its_own(queue: Queue) -> None:
    """enqueued, completed, failed, failing, requeued, cancelled: queued completed failed retried released."""
    await queue.configure(log_level="all")
    for end in ("complete", "fail", "retry", "release"):
        await queue.enqueue(1, id=end)
        claim = await claimed(queue)
        verb = getattr(claim, end)
        await (verb("no") if end == "fail" else verb())
        await queue.forget(end)
    await queue.enqueue(1, id="cancel")
    await queue.cancel("cancel")

    kinds = [event.kind for event in await actors.read(queue, 19)]
    for kind in ("queued", "claimed", "completed", "failed", "retried", "released", "forgotten", "cancelled"):
        assert kind in kinds


# -- the reaper --------------------------------------------------------------------------------------------


async def test_any_number_may_reap_and_need_no_leader(clerk: Clerk) -> None:
    """Each job comes back once, whoever looks, and a look that finds nothing says so."""
    for number in range(20):
        await clerk.put(f"{number:02}")
    await clerk.lease(10)
    await clerk.claim()
    clerk.now += 10
    found = await asyncio.gather(*(clerk.reap(7) for _ in range(5)))
    while rest := await clerk.reap(7):
        found.append(rest)

    ids = [reaped.id for part in found for reaped in part]
    assert (20, 20) == (len(ids), len(set(ids)))


async def test_a_reap_never_takes_from_a_new_holder(clerk: Clerk) -> None:
    """State, fence and expiry are checked in the step itself."""
    await clerk.put()
    await clerk.take(await clerk.lease(10))
    clerk.now += 10
    await clerk.reap()
    held = await clerk.take(await clerk.lease(1000))

    assert [] == await clerk.reap()
    assert held == await clerk.current()


async def test_a_reaper_that_begins_late_finds_everything(clerk: Clerk, storage_url: str) -> None:
    """It needs no events of what happened before, and knows workers that nobody announced."""
    await clerk.put()
    await clerk.take(await clerk.lease(10))
    clerk.now += 1_000_000_000

    async with open_storage(storage_url, clock="manual") as late:
        clerk.storage = late
        assert ["a"] == [reaped.id for reaped in await clerk.reap()]


async def test_the_last_writer_does_not_win(clerk: Clerk) -> None:
    """Of two who ran it, the one who holds it ends it, once."""
    await clerk.put()
    original = await clerk.stall()
    again = await clerk.take()

    assert "done" == (await clerk.settle(again, Complete(result=b"2"))).status
    for how in (Complete(result=b"1"), Fail(error=Error(type="x")), Cancelled(), Release(), HandOff()):
        assert "lost" == (await clerk.settle(original, how)).status
    assert b"2" == (await clerk.outcome()).result
    assert ["stalled", "completed"] == await clerk.kinds()


async def test_an_end_may_be_told_twice(clerk: Clerk) -> None:
    """Promise 7: settle by fence is safe to repeat; the same end is done, another is lost."""
    await clerk.put()
    job = await clerk.take()
    words = [(await clerk.settle(job, how)).status for how in (Complete(), Complete(), Cancelled())]

    assert ["done", "done", "lost"] == words


async def test_a_stall_is_an_attempt(clerk: Clerk) -> None:
    await clerk.put()
    for attempt in (1, 2, 3):
        assert attempt == (await clerk.stall()).attempts

    assert (3, 3) == ((await clerk.current()).attempts, (await clerk.current()).stalls)


# -- storages and serdes -----------------------------------------------------------------------------------


async def test_one_name_is_one_queue(app: Dibs) -> None:
    """Two handles of a name share its jobs, its handler and its serde."""
    await app.queue("q").enqueue(1, id="a")

    assert await app.queue("q").get("a") is not None
    assert [] == [status async for status in app.queue("Q").list("waiting")]


@pytest.mark.parametrize("serde", [JsonSerde(), MessagePackSerde()], ids=lambda serde: str(serde.name))
async def test_a_serde_of_ones_own_survives_a_retry(app: Dibs, stage: actors.Stage, serde: Any) -> None:
    """Nothing is found by its bytes: after a retry and a stall there is one job, with its payload."""
    queue = app.queue("own", serde=serde)
    play(queue)
    ticket = await queue.enqueue({"fail": 1, "return": "é"}, id="a")
    await work(app)

    assert "é" == await ticket.result(0)
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


async def test_an_enqueue_is_one_step_however_many_contend(clerk: Clerk) -> None:
    """Of a hundred that enqueue one id at once under Reject, one is first."""
    from dibs import Reject

    answers = await asyncio.gather(*(clerk.put("a", Reject()) for _ in range(100)))

    assert 1 == [answer.status for answer in answers].count("queued")
    assert 99 == [answer.status for answer in answers].count("duplicate")


async def test_a_settlement_of_many_is_in_order_and_each_by_itself(clerk: Clerk) -> None:
    for id in "abc":
        await clerk.put(id)
    a, b, c = await clerk.claim()
    batch = [
        Settlement(id="b", fence=fence_of(b), action=RetryLater(delay=0)),
        Settlement(id="a", fence=fence_of(a) + 10**9, action=Complete()),
        Settlement(id="c", fence=fence_of(c), action=Complete(result=b"1")),
    ]
    answers = await clerk.storage.settle("q", batch, now=clerk.now)

    assert ["returned", "lost", "done"] == [answer.status for answer in answers]


def test_no_driver_is_loaded_that_the_place_does_not_need(storage_url: str) -> None:
    """A storage is imported when it is first opened."""
    scheme = storage_url.partition(":")[0]
    drivers = {"redis": "psycopg", "postgresql": "redis"}
    code = f"import sys, dibs; dibs.open_storage({storage_url!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert drivers.get(scheme, "psycopg") not in done.stdout.split()
