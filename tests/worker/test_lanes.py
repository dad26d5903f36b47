"""What a worker knows of a queue, and what it makes of a wake-up."""

from __future__ import annotations

import pytest

from dibs.client.handler import Handler
from dibs.client.serde import JSON
from dibs.model.answers import Claim, Settled
from dibs.model.job import Error
from dibs.model.requests import Cancelled, Complete, Fail, How, Release, Retry
from dibs.worker.lanes import Lane, second_try, word_of
from tests.worker.workshop import arguments

ERROR = Error(type="ValueError")


def quiet(token: str = "1") -> Lane:
    """A lane that had nothing when it last asked."""
    handler = Handler(queue="q", function=print, is_async=False, serde=JSON, arguments=arguments)
    lane = Lane(handler, 100)
    lane.saw(Claim(now=0, token=token), 10)
    return lane


def test_a_claim_that_brought_less_than_asked_leaves_nothing_to_claim() -> None:
    assert not quiet().ready


def test_a_wake_up_makes_it_ready() -> None:
    lane = quiet("1")
    lane.wake("2", asked="1", now=0)

    assert lane.ready


def test_a_wake_up_by_our_own_settlements_does_not() -> None:
    """While it waited from token 1 on, a turn of ours moved the queue to 2, and claimed nothing there."""
    lane = quiet("2")
    lane.wake("2", asked="1", now=0)

    assert not lane.ready


def test_a_wake_up_that_explains_nothing_is_looked_into() -> None:
    lane = quiet("1")
    lane.wake("1", asked="1", now=0)

    assert lane.ready


def test_a_job_that_falls_due_makes_it_ready() -> None:
    lane = quiet("2")
    lane.saw(Claim(now=1000, next_due=3000, token="2"), 10)
    assert lane.due_at is not None
    lane.wake("2", asked="1", now=lane.due_at)

    assert lane.ready


def test_errors_make_it_rest_longer_and_longer() -> None:
    lane = quiet()
    rests = [lane.rest() for _ in range(7)]
    lane.went_well()

    assert [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0] == rests
    assert 0.1 == lane.rest()


@pytest.mark.parametrize(
    ("word", "how", "status"),
    [
        ("completed", Complete(), "done"),
        ("failed", Fail(error=ERROR), "done"),
        ("cancelled", Cancelled(), "done"),
        ("retried", Retry(), "returned"),
        ("timed_out", Retry(cause="timeout"), "returned"),
        ("stalled", Retry(cause="stall"), "returned"),
        ("released", Release(), "returned"),
        ("cancelled", Retry(), "cancelled"),
        ("lost", Complete(), "lost"),
        ("lost", Fail(error=ERROR), "refused"),
    ],
)
def test_an_answer_has_a_word(word: str, how: How, status: str) -> None:
    assert word == word_of(how, Settled(status))  # type: ignore[arg-type]


def test_a_refused_completion_becomes_a_failure_and_that_is_all() -> None:
    failure = second_try(Complete(result=b"x"), "too large", handled=True)

    assert isinstance(failure, Fail)
    assert failure.handled
    assert second_try(failure, "no", handled=True) is None
