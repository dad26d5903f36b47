"""What a supervisor knows of the runs in its processes' hands."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.model.job import Error, Overrides
from dibs.model.requests import Fail, Release, RetryLater
from dibs.model.retry import Exponential, Fixed
from dibs.worker import messages
from dibs.worker.supervisor.crash_recovery import after_crash, after_overrun
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
from tests.worker.workshop import arguments


def held(place: int, id: str = "a", *, claimed_at: int = 0) -> messages.ClaimedRun:
    return messages.ClaimedRun(place, id, 100 + place, claimed_at, 500, 1, 2, None)


def test_a_run_is_held_until_its_end_is_told() -> None:
    holdings = HeldRuns[str]()
    holdings.claimed("p", messages.RunsClaimed("q", "lease", (held(0, "a"), held(1, "b"))))
    words = holdings.ended("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter(completed=1) == words
    assert ["b"] == [holding.run.id for holding in holdings.of("p")]
    assert (1, 1) == (len(holdings), holdings.under("lease"))


def test_an_end_is_counted_once() -> None:
    holdings = HeldRuns[str]()
    holdings.claimed("p", messages.RunsClaimed("q", "lease", (held(0),)))
    holdings.ended("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter() == holdings.ended("p", messages.RunsSettled("q", {"completed": [0]}))
    assert 0 == holdings.under("lease")


def test_what_is_forgotten_is_under_no_lease() -> None:
    holdings = HeldRuns[str]()
    holdings.claimed("p", messages.RunsClaimed("q", "lease", (held(0), held(1))))
    holdings.forget("p")

    assert (0, 0, []) == (len(holdings), holdings.under("lease"), holdings.of("p"))


def test_a_request_to_stop_is_for_the_run_it_was_made_for() -> None:
    """What was claimed after the storage told of the request is another run of the id."""
    holdings = HeldRuns[str]()
    holdings.claimed(
        "p", messages.RunsClaimed("q", "lease", (held(0, "a", claimed_at=5), held(1, "b", claimed_at=9)))
    )
    holdings.claimed("o", messages.RunsClaimed("other", "lease", (held(0, "a", claimed_at=5),)))

    assert {"p": [("q", "a", 100)]} == holdings.with_ids("q", ("a", "b"), 9)
    assert {} == holdings.with_ids("q", ("a", "b"), 9), "it was told already"


def handler(**limits: int) -> Handler:
    return Handler(
        queue="q", function=print, is_async=False, serde=JSON, arguments=arguments, handles_failure=True,
        limits=HandlerLimits(backoff=Exponential(1), **limits),
    )  # fmt: skip


def test_only_what_was_started_is_a_stall() -> None:
    error = Error(type="ProcessDied")
    holding = HeldRun("q", "lease", held(1))

    assert RetryLater(cause="stall", delay=2000, error=error) == after_crash(
        holding, [0.0, 1.5], error, handler(), 0
    )
    assert Release() == after_crash(holding, [1.5, 0.0], error, handler(), 0)


def test_of_a_process_ended_for_its_overrun_runs_only_these_have_timed_out() -> None:
    neighbour, late = HeldRun("q", "lease", held(1)), HeldRun("q", "lease", held(2), overran=True)
    error = Error(type="TimeoutError", message="took longer than its timeout of 0.5 s")
    again = RetryLater(cause="timeout", delay=4000, error=error)

    assert Release() == after_overrun(neighbour, handler(), 0)
    assert again == after_overrun(late, handler(), 0)
    assert again == after_crash(late, [0.0, 0.0, 1.5], error, handler(), 0)
    assert Fail(error=error, handled=True) == after_overrun(late, handler(max_timeouts=2), 0)


def test_the_limits_of_a_job_come_before_those_of_its_handler() -> None:
    own = Overrides(max_timeouts=3, backoff=Fixed(7))
    late = HeldRun("q", "lease", replace(held(1), own=own), overran=True)
    how = after_overrun(late, handler(max_timeouts=2), 0)

    assert isinstance(how, RetryLater)
    assert 7000 == how.delay


def test_a_run_ends_by_its_timeout_or_as_its_process_has_it() -> None:
    run = HeldRun("q", "lease", held(0))

    assert None is run.ends_by(0.0)
    assert 10.5 == run.ends_by(10.0)
    run.stops_by = 12.0
    assert 12.0 == run.ends_by(10.0)
    run.overran = True
    assert None is run.ends_by(10.0)


def test_a_word_about_a_run_that_is_gone_is_about_nothing() -> None:
    holdings = HeldRuns[str]()
    holdings.claimed("p", messages.RunsClaimed("q", "lease", (held(0),)))

    assert "a" == getattr(holdings.at("p", 0, 100), "run", held(9)).id
    assert None is holdings.at("p", 0, 99)
    assert None is holdings.at("o", 0, 100)
