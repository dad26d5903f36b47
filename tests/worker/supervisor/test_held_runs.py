"""The runs that workers hold: added by RunsClaimed, removed by RunsSettled."""

from __future__ import annotations

from collections import Counter

from dibs.worker import messages
from dibs.worker.supervisor.held_runs import HeldRun, HeldRuns


def claimed_run(index: int, id: str = "a", *, claimed_at: int = 0) -> messages.ClaimedRun:
    return messages.ClaimedRun(index, id, 100 + index, claimed_at, 500, 1, 2, None)


def test_a_run_is_held_until_it_is_settled() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0, "a"), claimed_run(1, "b"))))
    ends = held_runs.remove("p", messages.RunsSettled("q", {"completed": [0]}))

    assert Counter(completed=1) == ends
    assert ["b"] == [held_run.run.id for held_run in held_runs.runs_of("p")]
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
    held_runs.remove_worker("p")

    assert (0, 0, []) == (len(held_runs), held_runs.count_under("lease"), held_runs.runs_of("p"))


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

    assert {"p": [("q", "a", 100)]} == held_runs.take_runs_to_cancel("q", ("a", "b"), 9)
    assert {} == held_runs.take_runs_to_cancel("q", ("a", "b"), 9), "each run is cancelled once"


def test_the_deadline_is_the_timeout_or_the_extension_by_the_process() -> None:
    run = HeldRun("q", "lease", claimed_run(0))

    assert None is run.deadline(0.0)
    assert 10.5 == run.deadline(10.0)
    run.stop_deadline = 12.0
    assert 12.0 == run.deadline(10.0)
    run.overran = True
    assert None is run.deadline(10.0)


def test_a_run_is_found_by_its_index_and_fence() -> None:
    held_runs = HeldRuns[str]()
    held_runs.add("p", messages.RunsClaimed("q", "lease", (claimed_run(0),)))

    assert "a" == getattr(held_runs.find_run("p", 0, 100), "run", claimed_run(9)).id
    assert None is held_runs.find_run("p", 0, 99)
    assert None is held_runs.find_run("o", 0, 100)
