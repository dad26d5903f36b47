"""The arithmetic of rates: any stretch of w us has at most burst + w div interval starts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model import rates
from dibs.model.requests import StartRate

some_rates = st.builds(StartRate, starts=st.integers(1, 5), per=st.integers(1, 20), burst=st.integers(1, 4))


def play(rate: StartRate, steps: list[int]) -> list[int]:
    """Try to start a run after each step of time; return the times of the starts, in ms."""
    clock, now, starts = 0, 0, []
    for step in steps:
        now += step
        if rates.allows_start(clock, rate, now):
            clock = rates.charge_start(clock, rate, now)
            starts.append(now)
    return starts


@given(some_rates, st.lists(st.integers(0, 12), max_size=60))
def test_no_stretch_has_more_starts_than_the_rate_allows(rate: StartRate, steps: list[int]) -> None:
    starts = play(rate, steps)

    for first, at in enumerate(starts):
        for last in range(first, len(starts)):
            most = rate.burst + (starts[last] - at) * 1000 // rates.interval(rate)
            assert last - first + 1 <= most


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (StartRate(1, 1), 1000),
        (StartRate(3, 1), 334),
        (StartRate(7, 10), 1429),
        (StartRate(1_000_000, 1000), 1),
        (StartRate(1, 31 * 86_400_000), 31 * 86_400_000_000),
    ],
)
def test_the_interval_is_rounded_up_to_a_whole_us(rate: StartRate, expected: int) -> None:
    assert expected == rates.interval(rate)
