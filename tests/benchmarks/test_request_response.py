"""The times of requests, next to callers whose jobs start later."""

from __future__ import annotations

from benchmarks.request_response import measure_storage, row


def test_each_request_is_timed() -> None:
    times = measure_storage("memory:timed", jobs=5, others=3)

    assert 5 == len(times)
    assert all(ms > 0 for ms in times)


def test_a_row_has_the_median_and_the_99th_percentile() -> None:
    measured = row("redis", 100, [float(ms) for ms in range(1, 1000)])

    assert {"storage": "redis", "others": 100, "p50_ms": 500, "p99_ms": 990} == measured
