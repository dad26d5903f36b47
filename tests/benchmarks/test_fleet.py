"""The samples that the rates of worker processes are computed from."""

from __future__ import annotations

import pytest
from benchmarks.fleet.measure import Sample, rates


def test_the_time_after_the_last_completed_job_does_not_count() -> None:
    samples = [Sample(0.0, 0, 1.0), Sample(1.0, 100, 1.5), Sample(2.0, 200, 2.0), Sample(2.2, 210, 2.1)]

    assert (100.0, 0.005) == rates([*samples, Sample(30.0, 210, 9.0)])


def test_without_a_sample_in_between_the_first_sample_with_the_final_count_is_used() -> None:
    assert (500.0, 0.01) == rates([Sample(0.0, 0, 0.0), Sample(0.2, 100, 1.0), Sample(9.0, 100, 4.0)])


def test_a_single_sample_has_no_rate() -> None:
    with pytest.raises(ValueError, match="measure more jobs"):
        rates([Sample(0.0, 100, 1.0)])
