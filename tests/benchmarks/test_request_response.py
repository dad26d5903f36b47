"""Requests are timed, each with an answer of its own, and those who wait in vain do not stop them."""

from __future__ import annotations

from benchmarks.request_response import measured, row


def test_each_request_is_timed() -> None:
    took = measured("memory:timed", jobs=5, others=3)

    assert 5 == len(took)
    assert all(ms > 0 for ms in took)


def test_a_row_tells_the_middle_and_the_slowest() -> None:
    told = row("redis", 100, [float(ms) for ms in range(1, 1000)])

    assert {"storage": "redis", "others": 100, "p50_ms": 500, "p99_ms": 990} == told
