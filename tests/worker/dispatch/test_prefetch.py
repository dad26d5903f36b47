"""Prefetched jobs: claimed before there is capacity for them, and released if they cannot start in time."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.worker import WorkReport, run
from dibs.worker.dispatch import queue_state
from tests.worker.faulty_storage import faulty_storage
from tests.worker.jobs import add, current, event_kinds, ids, outcome, put, wait_for_count

#: The job that takes long, after enough short runs to start prefetching.
LONG = ids(100)[50]


class Blocker:
    """A handler whose size fills a process. In the job LONG it blocks until the test sets `go`."""

    def __init__(self, app: Dibs) -> None:
        self.here, self.go = asyncio.Event(), asyncio.Event()
        self.ran: list[str] = []

        async def handler() -> None:
            self.ran.append(current_job().id)
            if self.ran[-1] == LONG:
                self.here.set()
                await self.go.wait()

        add(app, "q", handler, size=100)

    @asynccontextmanager
    async def blocked(self, app: Dibs) -> AsyncIterator[asyncio.Task[WorkReport]]:
        """Run a worker until it runs the long job and has prefetched others."""
        await put(app, "q", *ids(100))
        task = asyncio.create_task(run(app, until="empty", heartbeat=0.02))
        async with asyncio.timeout(60):
            await self.here.wait()
            yield task
            self.go.set()
            await task


async def only_one_active(app: Dibs) -> None:
    since: Mapping[str, str] | None = None
    async with asyncio.timeout(60):
        while (await app.storage.counts(["q"]))["q"].active != 1:
            since = (await app.storage.wait(["q"], for_="events", since=since, timeout=0.5)).since


async def test_prefetching_short_runs_saves_round_trips(app: Dibs) -> None:
    async def short() -> None: ...

    add(app, "q", short, size=10)
    async with faulty_storage(app) as storage:
        await put(app, "q", *ids(1000))
        await run(app, until="empty")
        round_trips = sum(storage.calls.count(verb) for verb in ("claim", "settle_and_claim", "settle"))

    assert round_trips < 80, "one for each ten that fit would be a hundred"


async def test_a_prefetched_job_that_cannot_start_in_time_is_released_uncounted(app: Dibs) -> None:
    handler = Blocker(app)
    async with handler.blocked(app):
        assert 1 < (await app.storage.counts(["q"]))["q"].active
        await only_one_active(app)

    assert ids(100) == handler.ran, "in the order of the queue all the same"
    assert ["released", "completed"] == (await event_kinds(app, "q", ids(100)[51]))[-2:]
    assert 1 == (await outcome(app, "q", ids(100)[51])).attempts


async def test_a_stop_releases_prefetched_jobs_at_once(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_state, "PREFETCH_TIMEOUT", 3600.0)
    handler = Blocker(app)
    async with handler.blocked(app):
        assert 1 < (await app.storage.counts(["q"]))["q"].active
        os.kill(os.getpid(), signal.SIGTERM)
        await only_one_active(app)

    assert LONG == handler.ran[-1]
    released = await current(app, "q", ids(100)[51])
    assert (None, 0, 0) == (released.run, released.attempts, released.stalls)


async def test_a_prefetched_job_is_cancelled_without_running(app: Dibs) -> None:
    handler, other = Blocker(app), ids(100)[51]
    async with handler.blocked(app):
        await app.storage.cancel("q", [other], running=True)
        await wait_for_count(app, "q", "cancelled")

    assert "cancelled" == (await outcome(app, "q", other)).kind
    assert other not in handler.ran
    assert 99 == len(handler.ran)
