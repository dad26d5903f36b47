"""The runs that workers hold, and the settlement of runs whose process died."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from dibs.client.calls.handler import Handler, HandlerLimits
from dibs.client.options.serde import JSON
from dibs.model.job import Error, Overrides
from dibs.model.requests import Fail, Release, RetryLater
from dibs.model.retry import Exponential, Fixed
from dibs.worker import messages
from dibs.worker.supervisor.crash_recovery import Crash, recovery_action
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns
from tests.worker.jobs import arguments


def claimed_run(index: int, id: str = "a", *, claimed_at: int = 0) -> messages.ClaimedRun:
    return messages.ClaimedRun(index, id, 100 + index, claimed_at, 500, 1, 2, None)


def test_a_run_is_held_until_it_is_settled() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0, "a"), claimed_run(1, "b"))))
    ends = held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter(completed=1) == ends
    assert ["b"] == [held_run.run.id for held_run in held_runs.of("p")]
    assert (1, 1) == (len(held_runs), held_runs.count_under("lease"))


def test_a_settled_run_is_counted_once() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0),)))
    held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter() == held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))
    assert 0 == held_runs.count_under("lease")


def test_forgotten_runs_are_under_no_lease() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0), claimed_run(1))))
    held_runs.forget("p")

    assert (0, 0, []) == (len(held_runs), held_runs.count_under("lease"), held_runs.of("p"))


def test_a_cancellation_applies_to_runs_claimed_before_it() -> None:
    """A run that was claimed after the storage reported the cancellation is another run of the id."""
    held_runs = HeldRuns[str]()
    held_runs.add(
        "p",
        messages.RunsClaimed(
            "q", "lease", (claimed_run(0, "a", claimed_at=5), claimed_run(1, "b", claimed_at=9))
        ),
    )
    held_runs.add("o", messages.RunsClaimed("other", "lease", (claimed_run(0, "a", claimed_at=5),)))

    assert {"p": [("q", "a", 100)]} == held_runs.take_cancelled("q", ("a", "b"), 9)
    assert {} == held_runs.take_cancelled("q", ("a", "b"), 9), "each run is cancelled once"


def handler(**limits: int) -> Handler:
    return Handler(
        queue="q", function=print, is_async=False, serde=JSON, arguments=arguments, handles_failure=True,
        limits=HandlerLimits(backoff=Exponential(1), **limits),
    )  # fmt: skip


def test_after_a_crash_only_started_runs_are_stalled() -> None:
    error = Error(type="ProcessDied")
    held_run = HeldRun("q", "lease", claimed_run(1))

    assert RetryLater(cause="stall", delay=2000, error=error) == recovery_action(
        held_run, handler(), Crash([0.0, 1.5], error), 0
    )
    assert Release() == recovery_action(held_run, handler(), Crash([1.5, 0.0], error), 0)


def test_after_an_overrun_only_overrun_runs_have_timed_out() -> None:
    neighbour, late = (
        HeldRun("q", "lease", claimed_run(1)),
        HeldRun("q", "lease", claimed_run(2), overran=True),
    )
    error = Error(type="TimeoutError", message="took longer than its timeout of 0.5 s")
    again = RetryLater(cause="timeout", delay=4000, error=error)

    assert Release() == recovery_action(neighbour, handler(), None, 0)
    assert again == recovery_action(late, handler(), None, 0)
    assert again == recovery_action(late, handler(), Crash([0.0, 0.0, 1.5], error), 0)
    assert Fail(error=error, handled=True) == recovery_action(late, handler(max_timeouts=2), None, 0)


def test_the_overrides_of_a_job_replace_the_limits_of_its_handler() -> None:
    overrides = Overrides(max_timeouts=3, backoff=Fixed(7))
    late = HeldRun("q", "lease", replace(claimed_run(1), overrides=overrides), overran=True)
    action = recovery_action(late, handler(max_timeouts=2), None, 0)

    assert isinstance(action, RetryLater)
    assert 7000 == action.delay


def test_the_deadline_is_the_timeout_or_the_extension_by_the_process() -> None:
    run = HeldRun("q", "lease", claimed_run(0))

    assert None is run.ends_by(0.0)
    assert 10.5 == run.ends_by(10.0)
    run.stops_by = 12.0
    assert 12.0 == run.ends_by(10.0)
    run.overran = True
    assert None is run.ends_by(10.0)


def test_a_run_is_found_by_its_index_and_fence() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0),)))

    assert "a" == getattr(held_runs.find("p", 0, 100), "run", claimed_run(9)).id
    assert None is held_runs.find("p", 0, 99)
    assert None is held_runs.find("o", 0, 100)
