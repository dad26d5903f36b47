"""What the figures of a fleet count, and what not."""

from __future__ import annotations

from benchmarks.crew.work import Sample, rates


def test_the_clock_stops_when_the_jobs_have_ended_not_when_a_poison_is_given_up() -> None:
    looks = [Sample(0.0, 0, 1.0), Sample(1.0, 100, 1.5), Sample(2.0, 200, 2.0), Sample(2.2, 210, 2.1)]

    assert (100.0, 0.005) == rates([*looks, Sample(30.0, 210, 9.0)])


def test_a_run_that_ends_between_two_looks_is_timed_to_the_first_that_saw_its_end() -> None:
    assert (500.0, 0.01) == rates([Sample(0.0, 0, 0.0), Sample(0.2, 100, 1.0), Sample(9.0, 100, 4.0)])
