"""What a worker knows of a queue, and what it makes of a wake-up."""

from __future__ import annotations

import time

from dibs.client.calls.handler import Handler
from dibs.client.options.serde import JSON
from dibs.model.job import ActiveRun as Held
from dibs.model.job import Job, JobData
from dibs.model.results import ClaimResult
from dibs.worker.dispatch.queue_state import (
    MAX_PREFETCH,
    MIN_BATCH,
    PREFETCH_TIMEOUT,
    SETTLEMENT_DELAY,
    QueueState,
)
from dibs.worker.dispatch.round_trip import RoundTrip
from dibs.worker.execution.invocation import Invocation
from tests.worker.workshop import arguments


def quiet(token: str = "1") -> QueueState:
    """A queue that had nothing when it last asked."""
    handler = Handler(queue="q", function=print, is_async=False, serde=JSON, arguments=arguments)
    queue = QueueState(handler, 10, 100)
    queue.readiness.claimed(ClaimResult(now=0, token=token), 10)
    return queue


def job(id: str) -> Job:
    held = Held(fence=1, lease="lease", holder="me", claimed_at=0)
    return Job(id=id, data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=held)


def test_a_claim_that_brought_less_than_asked_leaves_nothing_to_claim() -> None:
    assert not quiet().readiness.ready


def test_a_wake_up_makes_it_ready() -> None:
    queue = quiet()
    queue.readiness.wake()

    assert queue.readiness.ready


def test_a_wait_in_which_nothing_came_leaves_it_quiet() -> None:
    queue = quiet("1")
    queue.readiness.waited("2", since="1", now=queue.readiness.poll_at - 1)

    assert not queue.readiness.ready
    assert "2" == queue.readiness.token, "the next wait goes on from there"


def test_where_an_old_wait_stood_says_nothing_once_a_claim_knows_better() -> None:
    queue = quiet("3")
    queue.readiness.waited("2", since="1", now=queue.readiness.poll_at - 1)

    assert "3" == queue.readiness.token


def test_it_is_asked_in_the_end_although_nothing_was_heard() -> None:
    queue = quiet()
    queue.readiness.waited("1", since="1", now=queue.readiness.poll_at)

    assert queue.readiness.ready


def test_a_job_that_falls_due_makes_it_ready() -> None:
    queue = quiet("2")
    queue.readiness.claimed(ClaimResult(now=1000, next_due=3000, token="2"), 10)
    assert queue.readiness.due_at is not None
    queue.readiness.waited("2", since="2", now=queue.readiness.due_at)

    assert queue.readiness.ready


def test_nothing_is_claimed_ahead_until_runs_have_shown_how_short_they_are() -> None:
    queue = quiet()
    assert 0 == queue.wanted_prefetch()
    queue.prefetch.add_run_time(0.001)
    assert 100 == queue.wanted_prefetch(), "ten at once, for 10 ms"
    queue.prefetch.add_run_time(10.0)
    assert 0 == queue.wanted_prefetch()


def test_no_more_is_claimed_ahead_than_a_process_may_lose_time_with() -> None:
    queue = quiet()
    queue.prefetch.add_run_time(1e-6)

    assert MAX_PREFETCH == queue.wanted_prefetch()


def draining(told: int = MIN_BATCH) -> QueueState:
    """A queue of short runs of which one request is in the air, half full, and so many runs have ended."""
    queue = quiet()
    queue.prefetch.add_run_time(1e-6)
    queue.readiness.claimed(ClaimResult(now=0, token="2", jobs=(job("a"),)), 1)
    queue.round_trips.in_flight.append(
        RoundTrip(settling=(), lease="lease", reserved=0, limit=MAX_PREFETCH // 2)
    )
    queue.round_trips.outbox += [Invocation(queue.handler, job(str(n)), n) for n in range(told)]
    return queue


def test_a_second_request_goes_out_where_both_ways_are_worth_it() -> None:
    assert draining().can_send_second(0.0)
    assert not draining(MIN_BATCH - 1).can_send_second(0.0)


def test_not_while_it_rests_nor_where_there_is_nothing_more_nor_a_third() -> None:
    resting, empty, both = draining(), draining(), draining()
    resting.readiness.back_off()
    empty.readiness.claimed(ClaimResult(now=0, token="3"), 10)
    both.round_trips.in_flight.append(RoundTrip(settling=(), lease=None, reserved=0, limit=0))

    assert [False] * 3 == [queue.can_send_second(time.monotonic()) for queue in (resting, empty, both)]


def test_what_is_on_its_way_counts_as_claimed_ahead_but_for_what_has_room() -> None:
    queue = draining()
    assert MAX_PREFETCH // 2 == queue.wanted_prefetch()
    queue.round_trips.in_flight[0].reserved = 100
    assert MAX_PREFETCH // 2 + 100 == queue.wanted_prefetch()


def test_a_claim_beside_one_that_failed_proves_nothing_by_finding_little() -> None:
    queue = draining()
    queue.claim_failed()
    assert queue.round_trips.in_flight[0].other_failed
    queue.readiness.claimed(ClaimResult(now=0, token="3"), 10, conclusive=False)

    assert queue.readiness.ready


def test_what_was_claimed_ahead_and_cannot_begin_goes_back() -> None:
    queue = quiet()
    queue.prefetch.add_run_time(1e-6)
    runs = [Invocation(queue.handler, job(id), place) for place, id in enumerate("ab")]
    queue.prefetch.runs.extend(runs)
    runs[0].received_at -= PREFETCH_TIMEOUT

    assert [runs[0]] == queue.prefetch.take_stale(time.monotonic())
    assert [runs[1]] == list(queue.prefetch.runs)
    assert 0 == queue.wanted_prefetch()


def test_ends_wait_for_those_of_what_is_about_to_end_but_not_long() -> None:
    queue = quiet()
    queue.prefetch.add_run_time(1e-6)
    queue.round_trips.outbox.append(Invocation(queue.handler, job("a"), 0))
    assert not queue.delays_settlements(0.0), "nothing is about to end"
    queue.prefetch.runs.extend(Invocation(queue.handler, job(str(n)), n) for n in range(MAX_PREFETCH))
    assert queue.delays_settlements(1.0)
    assert queue.delays_settlements(1.0 + SETTLEMENT_DELAY / 2)
    assert not queue.delays_settlements(1.0 + SETTLEMENT_DELAY)


def test_errors_make_it_rest_longer_and_longer() -> None:
    queue = quiet()
    rests = [queue.readiness.back_off() for _ in range(7)]
    queue.readiness.reset_backoff()

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == rests
    assert 0.1 == queue.readiness.back_off()
