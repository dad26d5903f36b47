"""Durations and datetimes become whole milliseconds, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from dibs.client.options.arguments import duration_ms, epoch_ms, utc_datetime


@pytest.mark.parametrize(
    ("duration", "ms"),
    [
        (1, 1000),
        (0.1, 100),
        (0.0001, 1),
        (1.0000001, 1001),
        (0.3, 300),
        (timedelta(microseconds=1), 1),
        (0, 0),
        (-2, -2000),
    ],
)
def test_seconds_become_whole_ms_rounded_up(duration: float | timedelta, ms: int) -> None:
    """Rounding up keeps a job from running early (contract 2)."""
    assert duration_ms("delay", duration) == ms


def test_a_datetime_in_any_zone_is_the_same_number() -> None:
    noon = datetime(1970, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert epoch_ms("run_at", noon) == 10 * 3600 * 1000
    assert utc_datetime(10 * 3600 * 1000) == noon
    assert epoch_ms("run_at", noon + timedelta(microseconds=1)) == 10 * 3600 * 1000 + 1


def test_a_datetime_survives_the_round_trip() -> None:
    now = datetime(2026, 11, 20, 17, 0, 0, 123_000, tzinfo=UTC)

    assert utc_datetime(epoch_ms("run_at", now)) == now
