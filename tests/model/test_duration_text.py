"""Durations as text."""

from __future__ import annotations

import pytest

from dibs.model.duration_text import parse_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("10s", 10),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("250ms", 0.25),
        ("1.5d", 129_600),
        ("2w", 1_209_600),
        ("0s", 0),
    ],
)
def test_numbers_with_units_are_added(text: str, seconds: float) -> None:
    assert seconds == parse_seconds("delay", text)


@pytest.mark.parametrize(
    "text", ["", " ", "5", "5M", "m", "-5m", "1e3s", "5m later", "5 minutes", "\u0665m", ".5s", "5m\n"]
)
def test_any_other_text_is_refused_by_the_name_of_its_field(text: str) -> None:
    with pytest.raises(ValueError, match=r"^delay is .* numbers with the units"):
        parse_seconds("delay", text)
