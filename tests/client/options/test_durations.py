"""Times as people write them, and as the contract keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dibs import Refused
from dibs.client.options.durations import duration_ms, epoch_ms, utc_datetime


@pytest.mark.parametrize(
    ("length", "ms"),
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
def test_seconds_become_whole_ms_rounded_up(length: float | timedelta, ms: int) -> None:
    """Nobody runs early (contract 2)."""
    assert duration_ms("delay", length) == ms


@pytest.mark.parametrize("length", [True, "5", None, float("nan"), float("inf")])
def test_what_is_no_length_of_time_is_refused(length: Any) -> None:
    with pytest.raises(Refused) as caught:
        duration_ms("delay", length)

    assert caught.value.field == "delay"


def test_a_moment_in_any_zone_is_one_number() -> None:
    noon = datetime(1970, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert epoch_ms("run_at", noon) == 10 * 3600 * 1000
    assert utc_datetime(10 * 3600 * 1000) == noon
    assert epoch_ms("run_at", noon + timedelta(microseconds=1)) == 10 * 3600 * 1000 + 1


@pytest.mark.parametrize("moment", [datetime(2026, 1, 1), 5, "2026-01-01"])  # noqa: DTZ001 - that is the case
def test_a_naive_datetime_is_refused(moment: Any) -> None:
    with pytest.raises(Refused):
        epoch_ms("run_at", moment)


def test_a_moment_comes_back_as_it_was() -> None:
    now = datetime(2026, 11, 20, 17, 0, 0, 123_000, tzinfo=UTC)

    assert utc_datetime(epoch_ms("run_at", now)) == now
