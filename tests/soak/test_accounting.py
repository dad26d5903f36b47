"""The accounts find each violation when it is planted."""

from __future__ import annotations

from attrs import evolve

from tests.soak.accounting import Accepted, End, Evidence, Fault, Run, account

JOB = ("async", "a")


def end(fence: int, kind: str, at: float, revision: int = 1) -> End:
    return End(JOB, fence, kind, at, 1, revision, 0)


#: A job that ran twice: the process of its first run was killed at 2, and its second run completed it.
SOUND = Evidence(
    accepted=[Accepted(JOB, 1, 0.5)],
    runs=[Run(JOB, 10, 7, 1.0, None), Run(JOB, 11, 8, 3.0, 4.0)],
    ends=[end(10, "stalled", 2.5), end(11, "completed", 4.5)],
    faults=[Fault("kill_process", 2.0, 2.0, frozenset([7]))],
)
#: The first run was frozen, not killed: it returned at 5, after the second run had completed the job.
FROZEN = evolve(SOUND, runs=[Run(JOB, 10, 7, 1.0, 5.0), SOUND.runs[1]])


def test_a_sound_history_has_no_violations() -> None:
    found = account(SOUND)

    assert ([], 0) == (found.violations, found.late_tried)
    assert {"kill_process": [2.5]} == found.recoveries


def test_a_run_that_the_storage_gave_back_may_go_on() -> None:
    found = account(FROZEN)

    assert ([], 1) == (found.violations, found.late_tried)


def test_an_enqueue_that_nothing_completed_is_lost() -> None:
    assert 1 == len(account(evolve(SOUND, ends=SOUND.ends[:1])).lost)


def test_an_enqueue_after_the_completed_revisions_is_lost() -> None:
    assert 1 == len(account(evolve(SOUND, accepted=[*SOUND.accepted, Accepted(JOB, 2, 5.0)])).lost)


def test_an_enqueue_that_two_runs_completed_is_doubled() -> None:
    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, end(12, "completed", 6.0)])).doubled)


def test_a_run_that_ended_twice_is_doubled() -> None:
    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, end(11, "released", 6.0)])).doubled)


def test_a_run_that_began_twice_is_doubled() -> None:
    assert 1 == len(account(evolve(SOUND, runs=[*SOUND.runs, Run(JOB, 11, 9, 3.5, None)])).doubled)


def test_a_tick_that_completed_twice_is_doubled() -> None:
    ticks = [End(("tick", "schedule"), fence, "completed", fence, fence, fence, 5) for fence in (1, 2)]

    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, *ticks])).doubled)


def test_two_runs_at_a_time_overlap_if_the_storage_gave_neither_back() -> None:
    assert 1 == len(account(evolve(FROZEN, ends=FROZEN.ends[1:])).overlapping)


def test_two_runs_at_a_time_overlap_if_the_storage_gave_the_job_back_later() -> None:
    assert 1 == len(account(evolve(FROZEN, ends=[end(10, "stalled", 3.5), FROZEN.ends[1]])).overlapping)


def test_the_end_of_a_run_that_was_given_back_is_a_late_write() -> None:
    late = account(evolve(FROZEN, ends=[*FROZEN.ends, end(10, "completed", 5.5)]))

    assert any("run 10" in line for line in late.late_accepted)


def test_the_largest_gap_between_ticks_is_measured() -> None:
    ticks = [Run(("tick", "schedule"), n, 7, at, at) for n, at in enumerate((1.0, 2.0, 5.5, 6.0))]

    assert 3.5 == account(evolve(SOUND, runs=ticks)).tick_gap


def limited_end(number: int, claimed_at: int, at: float, key: str = "a") -> End:
    return End(("limited", f"{key}:{number}"), number, "completed", at, number, number, 0, claimed_at)


def test_two_runs_of_one_key_at_a_time_are_over_the_limit() -> None:
    ends = [limited_end(1, 1000, 1.5), limited_end(2, 1499, 2.0), limited_end(3, 2000, 2.1)]

    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, *ends])).over_limit)


def test_a_third_start_of_a_key_before_the_interval_is_over_the_limit() -> None:
    """The rate allows five starts a second for each key, with a burst of two."""
    ends = [limited_end(n, at, at / 1000) for n, at in enumerate((1000, 1000, 1199), 1)]
    later = [limited_end(n, at, at / 1000) for n, at in enumerate((1000, 1000, 1200), 1)]

    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, *ends])).over_limit)
    assert [] == account(evolve(SOUND, ends=[*SOUND.ends, *later])).over_limit


def test_a_sixth_start_of_the_queue_before_the_interval_is_over_the_limit() -> None:
    """The rate allows twenty starts a second for the queue, with a burst of five."""
    ends = [limited_end(n, 1000 + n // 6, 1.0 + n / 1000, f"k{n}") for n in range(1, 7)]

    assert 1 == len(account(evolve(SOUND, ends=[*SOUND.ends, *ends])).over_limit)
