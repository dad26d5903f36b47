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
from tests.lineage import scripted_handlers
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


def test_no_driver_is_loaded_that_the_place_does_not_need(storage_url: str) -> None:
    """The module of a storage is imported when the storage is opened."""
    scheme = storage_url.partition(":")[0]
    drivers = {"redis": "psycopg", "postgresql": "redis"}
    code = f"import sys, dibs; dibs.open_storage({storage_url!r}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert drivers.get(scheme, "psycopg") not in done.stdout.split()
