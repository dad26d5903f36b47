"""Jobs claimed ahead of the room for them, and what becomes of them when their time does not come."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from dibs.client.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.worker import WorkReport, run
from dibs.worker.dispatch import queue_state
from tests.worker.workshop import add, counted, current, faulty, ids, kinds, outcome, put

#: The job that takes long, after so many that have shown how short runs are.
LONG = ids(100)[50]


class OneAtATime:
    """A handler that has its process to itself, and at one job stays there until it is let go."""

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
    async def stuck(self, app: Dibs) -> AsyncIterator[asyncio.Task[WorkReport]]:
        """A worker in whose hands are the long job, and others that were claimed ahead."""
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


async def test_short_runs_are_claimed_ahead_so_there_are_fewer_round_trips(app: Dibs) -> None:
    async def short() -> None: ...

    add(app, "q", short, size=10)
    async with faulty(app) as storage:
        await put(app, "q", *ids(1000))
        await run(app, until="empty")
        trips = sum(storage.calls.count(verb) for verb in ("claim", "settle_and_claim", "settle"))

    assert trips < 80, "one for each ten that fit would be a hundred"


async def test_what_cannot_begin_in_time_goes_back_without_a_mark(app: Dibs) -> None:
    handler = OneAtATime(app)
    async with handler.stuck(app):
        assert 1 < (await app.storage.counts(["q"]))["q"].active
        await only_one_active(app)

    assert ids(100) == handler.ran, "in the order of the queue all the same"
    assert ["released", "completed"] == (await kinds(app, "q", ids(100)[51]))[-2:]
    assert 1 == (await outcome(app, "q", ids(100)[51])).attempts


async def test_a_stop_gives_it_back_at_once(app: Dibs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_state, "PREFETCH_TIMEOUT", 3600.0)
    handler = OneAtATime(app)
    async with handler.stuck(app):
        assert 1 < (await app.storage.counts(["q"]))["q"].active
        os.kill(os.getpid(), signal.SIGTERM)
        await only_one_active(app)

    assert LONG == handler.ran[-1]
    behind = await current(app, "q", ids(100)[51])
    assert (None, 0, 0) == (behind.run, behind.attempts, behind.stalls)


async def test_it_is_cancelled_without_having_run(app: Dibs) -> None:
    handler, other = OneAtATime(app), ids(100)[51]
    async with handler.stuck(app):
        await app.storage.cancel("q", [other], running=True)
        await counted(app, "q", "cancelled")

    assert "cancelled" == (await outcome(app, "q", other)).kind
    assert other not in handler.ran
    assert 99 == len(handler.ran)
