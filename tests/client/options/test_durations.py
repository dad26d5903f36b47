"""Durations and datetimes become whole milliseconds, and back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs import Refused
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


@pytest.mark.parametrize("value", [True, "5", None, float("nan"), float("inf")])
def test_a_value_that_is_not_a_duration_is_refused(value: Any) -> None:
    with pytest.raises(Refused) as caught:
        duration_ms("delay", value)

    assert caught.value.field == "delay"


def test_a_datetime_in_any_zone_is_the_same_number() -> None:
    noon = datetime(1970, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert epoch_ms("run_at", noon) == 10 * 3600 * 1000
    assert utc_datetime(10 * 3600 * 1000) == noon
    assert epoch_ms("run_at", noon + timedelta(microseconds=1)) == 10 * 3600 * 1000 + 1


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), 5, "2026-01-01"])  # noqa: DTZ001 - a naive datetime is the case under test
def test_a_naive_datetime_is_refused(moment: Any) -> None:
    with pytest.raises(Refused):
        epoch_ms("run_at", moment)


def test_a_datetime_survives_the_round_trip() -> None:
    now = datetime(2026, 11, 20, 17, 0, 0, 123_000, tzinfo=UTC)

    assert utc_datetime(epoch_ms("run_at", now)) == now
