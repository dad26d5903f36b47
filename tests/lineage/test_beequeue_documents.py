"""beequeue: properties of queues, results by events, blocking handlers, and the features it leaves out."""

from __future__ import annotations

import asyncio

import pytest

from dibs import Dibs, Queue, Refused
from tests.lineage import scripted_handlers
from tests.lineage.scripted_handlers import (
    read_events,
    run_until_empty,
    running_worker,
    set_handler,
    wait_for_event,
)
from tests.worker.faulty_storage import faulty_storage

# -- queues ----------------------------------------------------------------------------------------------


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


async def test_an_app_names_its_queues_and_handlers(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The queues of a storage, and the settings of a handler, can be read."""
    set_handler(queue, max_retries=4, size=20)
    await queue.enqueue(1)
    await app.queue("other").enqueue(1)

    assert {"q", "other"} == {found.name for found in await app.queues()}
    assert (4, 20) == (app.handlers["q"].limits.max_retries, app.handlers["q"].size)


async def test_jobs_have_priorities(queue: Queue) -> None:
    await queue.enqueue_many([queue.bind(0), queue.bind(1, priority=5), queue.bind(2, priority=-5)])
    async with queue.receive(wait=0) as claims:
        assert [1, 0, 2] == [claim.data async for claim in claims]


async def test_large_data_is_refused(app: Dibs, queue: Queue) -> None:
    """A job has a limit of 1 MiB of data, the same on every storage. The error names limit and way out."""
    await queue.enqueue("x" * 100_000)
    with pytest.raises(Refused, match="the limit is 1048576"):
        await queue.enqueue("x" * 1_048_576)


# -- events ----------------------------------------------------------------------------------------------


async def test_an_event_leads_to_the_result(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """A reader in another process, that has never seen the ticket, gets id, verdict and result of a run."""
    set_handler(queue, max_retries=0)
    await queue.enqueue_many([queue.bind({"return": 5}, id="fine"), queue.bind({"fail": 1}, id="bad")])
    await run_until_empty(app)

    found = {}
    for event in await read_events(app.queue("q"), 2):
        status = await app.queue("q").get(event.id)
        assert status is not None
        found[event.id] = (event.kind, status.result, event.error.message if event.error else None)
    assert {"fine": ("completed", 5, None), "bad": ("failed", None, "no 1")} == found


async def test_one_reader_hears_all_workers(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The log of a queue monitors every worker, and names the worker of each run."""
    set_handler(queue)
    for name in ("one", "two"):
        await queue.enqueue({}, id=name)
        await run_until_empty(app, name=name)

    assert ["one", "two"] == [event.holder for event in await read_events(queue, 2)]


# -- handlers --------------------------------------------------------------------------------------------


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


async def test_a_job_made_during_a_request_gives_its_result_to_the_request(
    app: Dibs, queue: Queue, record: scripted_handlers.HandlerRecord
) -> None:
    """The web server enqueues with one app, and the worker has another app on the same storage."""
    set_handler(queue)
    async with Dibs(app.url) as web, running_worker(app):
        assert {"x": 2} == await web.queue("q").enqueue_and_wait({"x": 2}, wait=scripted_handlers.TIMEOUT)
