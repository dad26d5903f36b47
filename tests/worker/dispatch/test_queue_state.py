"""The state of a queue in a worker: readiness, prefetch and round trips."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.client.calls.handler import Handler
from dibs.client.options.serde import JSON
from dibs.model.job import ActiveRun, Job, JobData
from dibs.model.results import ClaimResult
from dibs.worker import WorkReport, run
from dibs.worker.dispatch import queue_state
from dibs.worker.dispatch.fairness import choose_queues
from dibs.worker.dispatch.queue_state import (
    MAX_PREFETCH,
    MIN_SHARE,
    PREFETCH_TIMEOUT,
    SETTLEMENT_DELAY,
    QueueState,
)
from dibs.worker.dispatch.round_trip import RoundTrip
from dibs.worker.execution.invocation import Invocation
from tests.worker.faulty_storage import faulty_storage
from tests.worker.jobs import add, arguments, current, event_kinds, ids, outcome, put, wait_for_count


def idle_queue(token: str = "1") -> QueueState:
    """A queue whose latest claim returned no job."""
    handler = Handler(queue="q", function=print, is_async=False, serde=JSON, decode_arguments=arguments)
    queue = QueueState(handler, 10, 100)
    queue.readiness.update_after_claim(ClaimResult(now=0, token=token), 10)
    return queue


def job(id: str) -> Job:
    run = ActiveRun(fence=1, lease="lease", holder="me", claimed_at=0)
    return Job(id=id, data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=run)


def wanted(queue: QueueState) -> int:
    """Return the number of jobs that the queue prefetches if no other queue has prefetched any."""
    return queue.prefetch.jobs_to_prefetch(queue.prefetch_share)


def test_a_claim_below_its_limit_leaves_the_queue_idle() -> None:
    assert not idle_queue().readiness.ready


def test_a_wake_up_makes_it_ready() -> None:
    queue = idle_queue()
    queue.readiness.wake()

    assert queue.readiness.ready


def test_a_wait_without_a_wake_up_leaves_it_idle() -> None:
    queue = idle_queue("1")
    now = queue.readiness.poll_at - 1
    queue.readiness.update_after_wait("2", "1", now, poll_until=now)

    assert not queue.readiness.ready
    assert "2" == queue.readiness.token, "the next wait starts from there"


def test_the_token_of_an_old_wait_does_not_replace_that_of_a_later_claim() -> None:
    queue = idle_queue("3")
    now = queue.readiness.poll_at - 1
    queue.readiness.update_after_wait("2", "1", now, poll_until=now)

    assert "3" == queue.readiness.token


def test_it_is_polled_without_a_wake_up() -> None:
    queue = idle_queue()
    now = queue.readiness.poll_at
    queue.readiness.update_after_wait("1", "1", now, poll_until=now)

    assert queue.readiness.ready


def test_a_job_that_falls_due_makes_it_ready() -> None:
    queue = idle_queue("2")
    queue.readiness.update_after_claim(ClaimResult(now=1000, next_due=3000, token="2"), 10)
    assert queue.readiness.due_at is not None
    queue.readiness.update_after_wait("2", "2", queue.readiness.due_at, poll_until=0.0)

    assert queue.readiness.ready


def test_prefetching_begins_when_the_duration_of_runs_is_known() -> None:
    queue = idle_queue()
    assert 0 == wanted(queue)
    queue.prefetch.add_run_time(0.001)
    assert 100 == wanted(queue), "ten at once, for 10 ms"
    queue.prefetch.add_run_time(10.0)
    assert 0 == wanted(queue)


def test_one_run_that_was_preempted_does_not_end_prefetching() -> None:
    queue = idle_queue()
    queue.prefetch.add_run_time(1e-5)
    queue.prefetch.add_run_time(0.02)
    assert queue.prefetch.is_short
    for _ in range(10):
        queue.prefetch.add_run_time(0.02)
    assert not queue.prefetch.is_short


def test_prefetching_has_a_limit() -> None:
    queue = idle_queue()
    queue.prefetch.add_run_time(1e-6)

    assert MAX_PREFETCH == wanted(queue)


#: The smallest large request of a queue of short runs.
BATCH = int(MAX_PREFETCH * MIN_SHARE)


def draining_queue(settlements: int = BATCH) -> QueueState:
    """A queue of short runs with one request in flight, half full, and settlements in its outbox."""
    queue = idle_queue()
    queue.prefetch.add_run_time(1e-6)
    queue.readiness.update_after_claim(ClaimResult(now=0, token="2", jobs=(job("a"),)), 1)
    queue.round_trips.in_flight.append(
        RoundTrip(settling=(), lease="lease", reserved=0, limit=MAX_PREFETCH // 2)
    )
    queue.round_trips.outbox += [Invocation(queue.handler, job(str(n)), n) for n in range(settlements)]
    return queue


def test_a_second_request_is_sent_if_it_is_large() -> None:
    assert draining_queue().can_send_second(0.0, BATCH)
    assert not draining_queue(BATCH - 1).can_send_second(0.0, BATCH)


def test_no_second_request_after_an_error_or_an_empty_claim_and_no_third() -> None:
    pausing, empty, two_in_flight = draining_queue(), draining_queue(), draining_queue()
    pausing.readiness.back_off()
    empty.readiness.update_after_claim(ClaimResult(now=0, token="3"), 10)
    two_in_flight.round_trips.in_flight.append(RoundTrip(settling=(), lease=None, reserved=0, limit=0))

    assert [False] * 3 == [
        queue.can_send_second(time.monotonic(), BATCH) for queue in (pausing, empty, two_in_flight)
    ]


def test_claims_in_flight_count_as_prefetched_except_their_reserved_jobs() -> None:
    queue = draining_queue()
    assert MAX_PREFETCH // 2 == wanted(queue)
    queue.round_trips.in_flight[0].reserved = 100
    assert MAX_PREFETCH // 2 + 100 == wanted(queue)


def test_a_small_claim_is_not_conclusive_if_another_one_failed() -> None:
    queue = draining_queue()
    queue.on_claim_failed()
    assert queue.round_trips.in_flight[0].other_failed
    queue.readiness.update_after_claim(ClaimResult(now=0, token="3"), 10, conclusive=False)

    assert queue.readiness.ready


def test_queues_of_short_runs_claim_only_what_their_prefetched_runs_leave_free() -> None:
    """Otherwise each queue would claim the one or two jobs by which its share exceeds its prefetched runs."""
    queues = [draining_queue(), draining_queue()]
    for queue in queues:
        queue.round_trips.in_flight.clear()
        queue.prefetch.runs.append(Invocation(queue.handler, job("a"), 0))
    choose_queues(queues, free=2 * 10)
    assert [1, 1] == [queue.startable for queue in queues]
    choose_queues(queues, free=3 * 10)
    assert [None, None] == [queue.startable for queue in queues]


def test_stale_prefetched_runs_are_removed() -> None:
    queue = idle_queue()
    queue.prefetch.add_run_time(1e-6)
    runs = [Invocation(queue.handler, job(id), index) for index, id in enumerate("ab")]
    queue.prefetch.runs.extend(runs)
    runs[0].received_at -= PREFETCH_TIMEOUT

    assert [runs[0]] == queue.prefetch.take_stale(time.monotonic())
    assert [runs[1]] == list(queue.prefetch.runs)
    assert 0 == wanted(queue)


def test_settlements_wait_a_moment_for_those_of_prefetched_runs() -> None:
    queue = idle_queue()
    queue.prefetch.add_run_time(1e-6)
    queue.round_trips.outbox.append(Invocation(queue.handler, job("a"), 0))
    assert not queue.delays_settlements(0.0, 0), "no prefetched run is about to end"
    queue.prefetch.runs.extend(Invocation(queue.handler, job(str(n)), n) for n in range(MAX_PREFETCH))
    assert queue.delays_settlements(1.0, 0)
    assert queue.delays_settlements(1.0 + SETTLEMENT_DELAY / 2, 0)
    assert not queue.delays_settlements(1.0 + SETTLEMENT_DELAY, 0)


def test_the_pause_after_errors_doubles_up_to_a_limit() -> None:
    queue = idle_queue()
    pauses = [queue.readiness.back_off() for _ in range(7)]
    queue.readiness.reset_backoff()

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == pauses
    assert 0.1 == queue.readiness.back_off()


# -- Prefetched jobs: claimed before there is capacity for them, and released if they cannot start in time


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
