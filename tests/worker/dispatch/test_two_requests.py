"""A queue that is drained: while one request is in the air a second goes out."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from dibs.client.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.errors import Refused, StorageUnavailable
from dibs.worker import WorkReport, run
from dibs.worker.dispatch import queue_state
from tests.worker.far import Call, Far
from tests.worker.workshop import add, behind, put

JOBS: Final = [f"{n:04}" for n in range(2000)]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs count as short also on a machine that stood still in one of them."""
    monkeypatch.setattr(queue_state, "PREFETCH_SECONDS", 3600.0)


class Drain:
    """A worker that drains a queue of short runs, from far away."""

    def __init__(self, app: Dibs, storage: Far) -> None:
        self.app, self.storage = app, storage
        self.ran: list[str] = []
        self.working: asyncio.Task[WorkReport]

    async def _handler(self) -> None:
        self.ran.append(current_job().id)

    @classmethod
    @asynccontextmanager
    async def begun(cls, app: Dibs) -> AsyncIterator[Drain]:
        async with behind(app, Far) as storage:
            drain = cls(app, storage)
            add(app, "q", drain._handler, size=1)
            for at in range(0, len(JOBS), 1000):
                await put(app, "q", *JOBS[at : at + 1000])
            drain.working = asyncio.create_task(run(app, until="empty"))
            yield drain

    async def ended(self) -> WorkReport:
        """Wait for its end, and see that each job ended once."""
        async with asyncio.timeout(60):
            report = await self.working
        ends = Counter(await self._completions())
        assert dict.fromkeys(JOBS, 1) == ends
        assert self.storage.most == 2
        return report

    async def active(self) -> set[str]:
        """Which jobs are claimed and not settled."""
        return {id for id, _ in (await self.app.storage.list("q", "active", limit=1000)).items}

    async def _completions(self) -> list[str]:
        found, after = list[str](), ""
        while page := (await self.app.storage.events("q", after=after or None, limit=1000)).events:
            found += [event.id for _, event in page if event.kind == "completed"]
            after = page[-1][0]
        return found


def told(call: Call) -> list[str]:
    """Which runs a request settles."""
    return [settlement.id for settlement in call.words[1]]


async def test_the_second_goes_out_while_the_first_is_in_the_air_and_no_third(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        report = await drain.ended()

    assert JOBS == drain.ran
    assert report.total("completed") == len(JOBS)
    assert len([verb for verb in drain.storage.calls if verb == "settle_and_claim"]) <= len(JOBS) / 150 + 5


async def test_no_run_is_told_in_both(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        assert told(first)
        assert told(second)
        assert not {*told(first)} & {*told(second)}
        first.land()
        second.land()
        await drain.ended()


async def test_jobs_begin_in_the_order_of_the_queue_whichever_comes_back_first(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        await first.make()
        second.land()
        await second.made
        first.land()
        await drain.ended()

    assert JOBS == drain.ran


async def test_what_the_second_brings_does_not_wait_long_for_the_first(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        before = await drain.active()
        await second.make()
        brought = await drain.active() - before
        second.land()
        await drain.storage.until(lambda: brought <= set(drain.ran))
        assert not first.made.done()
        first.land()
        await drain.ended()

    assert brought
    assert sorted(drain.ran) == JOBS


async def test_what_the_second_brings_under_a_lease_given_up_for_the_first_runs_before_it_is_dropped(
    app: Dibs,
) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        first.lose()
        # What the first told is told again, and more is claimed under a new lease.
        await drain.storage.until(lambda: len(drain.storage.under) > 1)
        assert "drop" not in drain.storage.calls
        second.land()
        await drain.ended()

    assert sorted(drain.ran) == JOBS, "none of them twice: what the first took had not begun"


async def test_what_the_first_takes_comes_back_when_the_second_is_lost(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        first.land()
        second.lose()
        await drain.ended()

    assert sorted(drain.ran) == JOBS


@pytest.mark.parametrize("error", [StorageUnavailable("nobody there"), Refused("one of them is bad")])
async def test_one_that_does_not_happen_is_made_again_while_the_other_goes_on(
    app: Dibs, error: Exception
) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        first.refuse(error)
        second.land()
        report = await drain.ended()

    assert sorted(drain.ran) == JOBS
    assert (len(JOBS), 0) == (report.total("completed"), report.total("lost"))


async def test_a_stop_gives_back_what_both_bring(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        os.kill(os.getpid(), signal.SIGTERM)
        await first.make()
        await second.make()
        held = (await app.storage.counts(["q"]))["q"].active
        first.land()
        second.land()
        async with asyncio.timeout(60):
            await drain.working

    counts = (await app.storage.counts(["q"]))["q"]
    assert held > 0
    assert (0, len(JOBS) - len(drain.ran)) == (counts.active, counts.waiting)


async def test_a_lost_lease_ends_both(app: Dibs) -> None:
    async with Drain.begun(app) as drain:
        first, second = await drain.storage.two()
        await app.storage.drop(["q"], first.words[2], 1000)
        first.land()
        await drain.storage.until(lambda: drain.storage.calls.count("grant") == 2)
        assert not second.answering.done()
        report = await drain.ended()

    assert 0 < report.total("lost")
