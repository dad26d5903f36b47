"""What a worker knows of a queue, and what it makes of a wake-up."""

from __future__ import annotations

import time

from dibs.client.calls.handler import Handler
from dibs.client.options.serde import JSON
from dibs.model.job import ActiveRun as Held
from dibs.model.job import Job, JobData
from dibs.model.results import ClaimResult
from dibs.worker.dispatch.queue_state import (
    MOST_AHEAD,
    STALE,
    TOGETHER,
    WORTH_A_TRIP,
    Lane,
)
from dibs.worker.dispatch.round_trip import Flight
from dibs.worker.execution.invocation import Invocation
from tests.worker.workshop import arguments


def quiet(token: str = "1") -> Lane:
    """A lane that had nothing when it last asked."""
    handler = Handler(queue="q", function=print, is_async=False, serde=JSON, arguments=arguments)
    lane = Lane(handler, 100)
    lane.saw(ClaimResult(now=0, token=token), 10)
    return lane


def job(id: str) -> Job:
    held = Held(fence=1, lease="lease", holder="me", claimed_at=0)
    return Job(id=id, data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=held)


def test_a_claim_that_brought_less_than_asked_leaves_nothing_to_claim() -> None:
    assert not quiet().ready


def test_a_wake_up_makes_it_ready() -> None:
    lane = quiet()
    lane.wake()

    assert lane.ready


def test_a_wait_in_which_nothing_came_leaves_it_quiet() -> None:
    lane = quiet("1")
    lane.slept("2", asked="1", now=lane.asked_at - 1)

    assert not lane.ready
    assert "2" == lane.token, "the next wait goes on from there"


def test_where_an_old_wait_stood_says_nothing_once_a_claim_knows_better() -> None:
    lane = quiet("3")
    lane.slept("2", asked="1", now=lane.asked_at - 1)

    assert "3" == lane.token


def test_it_is_asked_in_the_end_although_nothing_was_heard() -> None:
    lane = quiet()
    lane.slept("1", asked="1", now=lane.asked_at)

    assert lane.ready


def test_a_job_that_falls_due_makes_it_ready() -> None:
    lane = quiet("2")
    lane.saw(ClaimResult(now=1000, next_due=3000, token="2"), 10)
    assert lane.due_at is not None
    lane.slept("2", asked="2", now=lane.due_at)

    assert lane.ready


def test_nothing_is_claimed_ahead_until_runs_have_shown_how_short_they_are() -> None:
    lane = quiet()
    assert 0 == lane.wants_ahead()
    lane.took(0.001)
    assert 100 == lane.wants_ahead(), "ten at once, for 10 ms"
    lane.took(10.0)
    assert 0 == lane.wants_ahead()


def test_no_more_is_claimed_ahead_than_a_process_may_lose_time_with() -> None:
    lane = quiet()
    lane.took(1e-6)

    assert MOST_AHEAD == lane.wants_ahead()


def draining(told: int = WORTH_A_TRIP) -> Lane:
    """A lane of short runs of which one request is in the air, half full, and so many runs have ended."""
    lane = quiet()
    lane.took(1e-6)
    lane.saw(ClaimResult(now=0, token="2", jobs=(job("a"),)), 1)
    lane.flights.append(Flight(told=(), lease="lease", room=0, limit=MOST_AHEAD // 2))
    lane.outbox += [Invocation(lane.handler, job(str(n)), n) for n in range(told)]
    return lane


def test_a_second_request_goes_out_where_both_ways_are_worth_it() -> None:
    assert draining().worth_another(0.0)
    assert not draining(WORTH_A_TRIP - 1).worth_another(0.0)


def test_not_while_it_rests_nor_where_there_is_nothing_more_nor_a_third() -> None:
    resting, empty, both = draining(), draining(), draining()
    resting.rest()
    empty.saw(ClaimResult(now=0, token="3"), 10)
    both.flights.append(Flight(told=(), lease=None, room=0, limit=0))

    assert [False] * 3 == [lane.worth_another(time.monotonic()) for lane in (resting, empty, both)]


def test_what_is_on_its_way_counts_as_claimed_ahead_but_for_what_has_room() -> None:
    lane = draining()
    assert MOST_AHEAD // 2 == lane.wants_ahead()
    lane.flights[0].room = 100
    assert MOST_AHEAD // 2 + 100 == lane.wants_ahead()


def test_a_claim_beside_one_that_failed_proves_nothing_by_finding_little() -> None:
    lane = draining()
    lane.went_wrong()
    assert lane.flights[0].beside_a_failure
    lane.saw(ClaimResult(now=0, token="3"), 10, sure=False)

    assert lane.ready


def test_what_was_claimed_ahead_and_cannot_begin_goes_back() -> None:
    lane = quiet()
    lane.took(1e-6)
    runs = [Invocation(lane.handler, job(id), place) for place, id in enumerate("ab")]
    lane.ahead.extend(runs)
    runs[0].taken -= STALE

    assert [runs[0]] == lane.stale(time.monotonic())
    assert [runs[1]] == list(lane.ahead)
    assert 0 == lane.wants_ahead()


def test_ends_wait_for_those_of_what_is_about_to_end_but_not_long() -> None:
    lane = quiet()
    lane.took(1e-6)
    lane.outbox.append(Invocation(lane.handler, job("a"), 0))
    assert not lane.waits_for_more(0.0), "nothing is about to end"
    lane.ahead.extend(Invocation(lane.handler, job(str(n)), n) for n in range(MOST_AHEAD))
    assert lane.waits_for_more(1.0)
    assert lane.waits_for_more(1.0 + TOGETHER / 2)
    assert not lane.waits_for_more(1.0 + TOGETHER)


def test_errors_make_it_rest_longer_and_longer() -> None:
    lane = quiet()
    rests = [lane.rest() for _ in range(7)]
    lane.went_well()

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == rests
    assert 0.1 == lane.rest()
