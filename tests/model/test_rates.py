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


@given(some_rates, st.integers(0, 10**6), st.integers(0, 1000))
def test_the_next_start_is_the_first_ms_that_allows_one(rate: StartRate, clock: int, now: int) -> None:
    at = rates.next_start(clock, rate)

    assert rates.allows_start(clock, rate, at)
    assert at == 0 or not rates.allows_start(clock, rate, at - 1)
    assert rates.allows_start(clock, rate, now) == (at <= now)


@given(some_rates)
def test_after_a_pause_a_whole_burst_starts_at_once(rate: StartRate) -> None:
    """A clock that is not later than now has no effect: a long pause allows no more than the burst."""
    assert rate.burst == len(play(rate, [10**6] + [0] * 10))


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
