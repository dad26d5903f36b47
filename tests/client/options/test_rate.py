"""`Rate` and the key of a job: the values that limits use."""

from __future__ import annotations

from datetime import timedelta
from enum import IntEnum, StrEnum
from typing import Any

import pytest

from dibs import Rate, Refused
from dibs.client.options.arguments import build_key
from dibs.client.options.queue_settings import build_rate
from dibs.model.requests import StartRate


class Region(StrEnum):
    NORTH = "north"


class Tier(IntEnum):
    GOLD = 1


@pytest.mark.parametrize("per", [60, 60.0, "1m", timedelta(minutes=1)])
def test_the_period_is_any_duration(per: Any) -> None:
    assert StartRate(10, 60_000, 3) == Rate(10, per, 3).to_model()


def test_a_stored_rate_is_read_back() -> None:
    assert Rate(10, per=0.5, burst=2) == Rate.from_model(StartRate(10, 500, 2))


@pytest.mark.parametrize("text", ["5/s", "5/1s", "5/1000ms"])
def test_a_rate_may_be_text(text: str) -> None:
    assert StartRate(5, 1000) == build_rate("rate", text)
    assert StartRate(5, 1000, 9) == build_rate("rate", f"{text} burst 9")


@pytest.mark.parametrize("value", [5, (5, 1), StartRate(5, 1000)], ids=repr)
def test_only_a_rate_is_a_rate(value: Any) -> None:
    with pytest.raises(Refused, match=r"pass Rate\(10, per=60\), text such as '10/m'") as refused:
        build_rate("key_rate", value)

    assert "key_rate" == refused.value.field
    assert build_rate("key_rate", None) is None


@pytest.mark.parametrize(
    ("value", "key"),
    [("ada", "ada"), (0, "0"), (-7, "-7"), (10**40, "1" + "0" * 40), (None, None), ("é" * 64, "é" * 64),
     (Region.NORTH, "north"), (Tier.GOLD, "1")],
)  # fmt: skip
def test_text_and_whole_numbers_become_keys(value: Any, key: str | None) -> None:
    found = build_key(value)

    assert key == found
    assert type(found) in {str, type(None)}
