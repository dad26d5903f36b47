"""The drain of a queue: a second request is sent while the first is in flight."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.errors import Refused, StorageUnavailable
from dibs.worker import WorkReport, run
from dibs.worker.dispatch import queue_state
from tests.worker.dispatch.slow_storage import CaughtCall, SlowStorage
from tests.worker.faulty_storage import replace_storage
from tests.worker.jobs import add, put

JOBS: Final = [f"{n:04}" for n in range(2000)]


@pytest.fixture(autouse=True)
def short_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make runs count as short, also on a machine that pauses during a run.

    Requests of 200 jobs leave enough of JOBS for a drain, and one drop or list covers all active jobs.
    """
    monkeypatch.setattr(queue_state, "PREFETCH_SECONDS", 3600.0)
    monkeypatch.setattr(queue_state, "MAX_PREFETCH", 400)


class DrainingWorker:
    """A worker that drains a queue of short runs over a slow storage."""

    def __init__(self, app: Dibs, storage: SlowStorage) -> None:
        self.app, self.storage = app, storage
        self.ran: list[str] = []
        self.working: asyncio.Task[WorkReport]

    async def _handler(self) -> None:
        self.ran.append(current_job().id)

    @classmethod
    @asynccontextmanager
    async def start(cls, app: Dibs) -> AsyncIterator[DrainingWorker]:
        async with replace_storage(app, SlowStorage) as storage:
            worker = cls(app, storage)
            add(app, "q", worker._handler, size=1)
            for at in range(0, len(JOBS), 1000):
                await put(app, "q", *JOBS[at : at + 1000])
            worker.working = asyncio.create_task(run(app, until="empty"))
            yield worker

    async def ended(self) -> WorkReport:
        """Wait for the end of the worker, and check that each job completed once."""
        async with asyncio.timeout(60):
            report = await self.working
        ends = Counter(await self._completions())
        assert dict.fromkeys(JOBS, 1) == ends
        assert self.storage.most_in_flight == 2
        return report

    async def active(self) -> set[str]:
        """Return the ids of the claimed jobs that are not settled."""
        return {id for id, _ in (await self.app.storage.list("q", "active", limit=1000)).items}

    async def _completions(self) -> list[str]:
        found, after = list[str](), ""
        while page := (await self.app.storage.events("q", after=after or None, limit=1000)).events:
            found += [event.id for _, event in page if event.kind == "completed"]
            after = page[-1][0]
        return found


def settled_by(call: CaughtCall) -> list[str]:
    """Return the ids of the runs that a request settles."""
    return [settlement.id for settlement in call.arguments[1]]


async def test_a_second_request_is_sent_while_the_first_is_in_flight_and_no_third(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        report = await worker.ended()

    assert JOBS == worker.ran
    assert report.total("completed") == len(JOBS)
    assert len([verb for verb in worker.storage.calls if verb == "settle_and_claim"]) <= len(JOBS) / 150 + 5


async def test_no_run_is_settled_in_both(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        assert settled_by(first)
        assert settled_by(second)
        assert not {*settled_by(first)} & {*settled_by(second)}
        first.reply()
        second.reply()
        await worker.ended()


async def test_jobs_start_in_the_order_of_the_queue_if_the_second_reply_comes_first(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        await first.apply()
        second.reply()
        await second.applied
        first.reply()
        await worker.ended()

    assert JOBS == worker.ran


async def test_jobs_of_the_second_do_not_wait_long_for_the_first(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        before = await worker.active()
        await second.apply()
        claimed = await worker.active() - before
        second.reply()
        await worker.storage.until(lambda: claimed <= set(worker.ran))
        assert not first.applied.done()
        first.reply()
        await worker.ended()

    assert claimed
    assert sorted(worker.ran) == JOBS


async def test_jobs_of_the_second_run_before_a_lease_lost_by_the_first_is_dropped(
    app: Dibs,
) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        first.lose()
        # The settlements of the first are sent again, and the next claim has a new lease.
        await worker.storage.until(lambda: len(worker.storage.claims_by_lease) > 1)
        assert "drop" not in worker.storage.calls
        second.reply()
        await worker.ended()

    assert sorted(worker.ran) == JOBS, "none of them twice: the jobs of the first had not started"


async def test_jobs_of_the_first_run_when_the_second_is_lost(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        first.reply()
        second.lose()
        await worker.ended()

    assert sorted(worker.ran) == JOBS


@pytest.mark.parametrize("error", [StorageUnavailable("nobody there"), Refused("one of them is bad")])
async def test_a_failed_request_is_sent_again_while_the_other_goes_on(app: Dibs, error: Exception) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        first.refuse(error)
        second.reply()
        report = await worker.ended()

    assert sorted(worker.ran) == JOBS
    assert (len(JOBS), 0) == (report.total("completed"), report.total("lost"))


async def test_a_stop_releases_the_jobs_of_both(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        os.kill(os.getpid(), signal.SIGTERM)
        await first.apply()
        await second.apply()
        held = (await app.storage.counts(["q"]))["q"].active
        first.reply()
        second.reply()
        async with asyncio.timeout(60):
            await worker.working

    counts = (await app.storage.counts(["q"]))["q"]
    assert held > 0
    assert (0, len(JOBS) - len(worker.ran)) == (counts.active, counts.waiting)


async def test_a_lost_lease_ends_both(app: Dibs) -> None:
    async with DrainingWorker.start(app) as worker:
        first, second = await worker.storage.two_requests()
        await app.storage.drop(["q"], first.arguments[2], 1000)
        first.reply()
        await worker.storage.until(lambda: worker.storage.calls.count("grant") == 2)
        assert not second.answering.done()
        report = await worker.ended()

    assert 0 < report.total("lost")
