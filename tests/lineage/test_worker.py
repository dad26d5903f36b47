"""Workers on each storage: limits, wake-ups, periodic tasks, timeouts, stalls, leases and stops."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Sequence
from typing import Any

from dibs import Dibs, Exponential, Queue
from dibs.client.calls.handler import PROCESS_UNITS
from dibs.worker.work_plan import process_count
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    read_events,
    running_worker,
    set_handler,
    wait_for_event,
)
from tests.worker.faulty_storage import FaultyStorage, faulty_storage, replace_storage


def test_the_defaults_of_a_handler(queue: Queue, app: Dibs) -> None:
    """Timeout 60 s, 10 retries, 3 timeouts, 3 stalls, backoff from 2 s to 5 min, priority 100, and for a
    `def` size 10 of 100. For an `async def` it is 1.
    """
    queue.handler(scripted_handlers.scripted_blocking)
    app.queue("async").handler(scripted_handlers.scripted)
    handler = app.handlers["q"]

    assert (60_000, 10, 3, 3) == (
        handler.limits.timeout,
        handler.limits.max_retries,
        handler.limits.max_timeouts,
        handler.limits.max_stalls,
    )
    assert (Exponential(2, 300), False) == (handler.limits.backoff, Exponential().jitter)
    assert (10, 100, 100) == (handler.size, handler.queue_priority, PROCESS_UNITS)
    assert 1 == app.handlers["async"].size


class GrantTimes(FaultyStorage):
    """A storage that notes the lengths of the leases, in ms, that are asked of it."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.lease_ms: list[int] = []

    async def grant(self, queues: Sequence[str], ttl: int, holder: str, **options: Any) -> Any:
        self.lease_ms.append(ttl)
        return await self._storage.grant(queues, ttl, holder, **options)


async def test_a_worker_asks_for_a_lease_of_15_s(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A worker renews its lease three times in its length, polls every second, and has a grace of 30 s."""
    parameters = inspect.signature(Dibs.work).parameters
    assert (15, None, 1, 30) == tuple(
        parameters[name].default for name in ("lease", "heartbeat", "poll", "grace")
    )

    set_handler(queue)
    await queue.enqueue(1, id="a")
    async with replace_storage(app, GrantTimes) as storage, running_worker(app):
        await wait_for_event(queue, "completed")
    assert [15_000] == storage.lease_ms


def test_who_asks_how_many_processes_there_are(app: Dibs) -> None:
    """The default is one process for each CPU, or only this process for a storage in memory."""

    shared = app.storage.capabilities.shared
    assert ((os.cpu_count() or 1) if shared else 0) == process_count(None, app.storage)
    assert 0 == process_count(0, app.storage)


async def test_a_handler_may_enqueue_its_own_id_again(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A job can repeat itself: an enqueue of its own id runs after the current run."""
    set_handler(queue)
    record.queue = queue
    await queue.enqueue({"repeat": 3}, id="a")
    await scripted_handlers.run_until_empty(app)

    assert ["blocked"] * 3 == record.notes
    assert (["a"] * 4, 1) == (record.ran, record.max_active)


async def test_a_handler_that_blocks_its_thread_loses_no_job(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A `def` handler runs on a thread, so the worker renews its lease: no stall, and others run."""
    record.loop = asyncio.get_running_loop()
    other = app.queue("other")
    set_handler(queue, scripted_handlers.scripted_blocking)
    set_handler(other)
    await queue.enqueue({"hold": True}, id="a")
    async with faulty_storage(app) as storage, running_worker(app, lease=1, heartbeat=0.1):
        await record.wait_for_hold()
        await storage.until(lambda: storage.calls.count("renew") >= 12)
        assert 1 == await (await other.enqueue(1)).result(scripted_handlers.TIMEOUT)
        record.release_threads.set()
        await wait_for_event(queue, "completed")

    assert ["completed"] == [event.kind for event in await read_events(queue, 1)]


async def test_a_paused_queue_is_paused_for_all_workers(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """No client can claim from it until it is resumed. Its active jobs end, and other queues are served."""
    other = app.queue("other")
    set_handler(queue)
    set_handler(other)
    await queue.enqueue({"hold": True}, id="active")
    async with running_worker(app):
        await record.wait_for_hold()
        await queue.pause()
        await queue.enqueue(1, id="later")
        record.release.set()
        await wait_for_event(queue, "completed")
        assert 1 == await (await other.enqueue(1)).result(scripted_handlers.TIMEOUT)
        async with app.queue("q").receive(wait=0) as claims:
            assert [] == [claim async for claim in claims]
        assert "later" not in record.ran
        await queue.resume()
        await wait_for_event(queue, "completed", 2)
