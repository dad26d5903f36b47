"""When a run that went wrong comes back, and when it has come back often enough."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model.retry import Exponential, Fixed, Immediate, is_exhausted


@pytest.mark.parametrize("retry", [1, 2, 1000])
def test_immediate_never_waits(retry: int) -> None:
    assert 0 == Immediate().delay(retry)


@pytest.mark.parametrize("retry", [1, 2, 1000])
def test_fixed_waits_the_same_each_time_in_ms(retry: int) -> None:
    assert 2500 == Fixed(2.5).delay(retry)


@pytest.mark.parametrize(
    ("retry", "ms"), [(1, 2000), (2, 4000), (3, 8000), (7, 128_000), (8, 256_000), (9, 300_000)]
)
def test_exponential_doubles_until_the_cap(retry: int, ms: int) -> None:
    assert ms == Exponential(2, 300).delay(retry)


@given(st.integers(1, 10**9))
def test_exponential_never_passes_its_cap(retry: int) -> None:
    """However often a job comes back, the delay stays a number and at most the cap."""
    assert 0 < Exponential(2, 300).delay(retry) <= 300_000


@given(st.integers(1, 40), st.floats(0, 1, exclude_max=True))
def test_full_jitter_draws_between_0_and_the_whole_delay(retry: int, jitter_factor: float) -> None:
    whole = Exponential(2, 300).delay(retry)

    assert round(whole * jitter_factor) == pytest.approx(
        Exponential(2, 300, jitter=True).delay(retry, jitter_factor), abs=1
    )


def test_without_jitter_luck_changes_nothing() -> None:
    assert 2000 == Exponential(2, 300).delay(1, 0.01)


@pytest.mark.parametrize(
    ("retries", "limit", "over"),
    [(0, 0, True), (0, 1, False), (1, 1, True), (2, 1, True), (10**9, None, False)],
)
def test_a_limit_of_n_allows_n_retries(retries: int, limit: int | None, over: bool) -> None:  # noqa: FBT001
    assert over is is_exhausted(retries, limit)
