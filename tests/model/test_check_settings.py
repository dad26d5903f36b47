"""Each setting of a queue, at its limit and beyond. A refusal names the field."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Refused
from dibs.model.check_arguments import check_settings
from dibs.model.requests import SettingsPatch, StartRate

DAY = 86_400_000

GOOD: tuple[dict[str, Any], ...] = (
    {},
    {"fail_handler": True},
    {"log_results": 0},
    {"log_results": 4096},
    {"per_key": 1},
    {"per_key": 1_000_000},
    {"per_key": None, "rate": None, "key_rate": None},
    {"rate": StartRate(1_000_000, 1000)},
    {"rate": StartRate(1, 1, 1_000_000)},
    {"key_rate": StartRate(1, 31 * DAY, 11)},
    {"key_rate": StartRate(1, 31 * DAY)},
)

BAD: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"fail_handler": 1}, "fail_handler", "True or False"),
    ({"fail_handler": None}, "fail_handler", "True or False"),
    ({"log_results": 4097}, "log_results", "0 to 4096"),
    ({"log_results": -1}, "log_results", "0 to 4096"),
    ({"log_results": True}, "log_results", "whole number"),
    ({"per_key": 0}, "per_key", "1 to 1000000"),
    ({"per_key": 1_000_001}, "per_key", "1 to 1000000"),
    ({"per_key": "1"}, "per_key", "whole number"),
    ({"rate": (1, 2)}, "rate", "StartRate"),
    ({"rate": StartRate(0, 1)}, "rate.starts", "1 to"),
    ({"rate": StartRate(1_000_001, 10**6)}, "rate.starts", "1 to"),
    ({"rate": StartRate(1001, 1)}, "rate.starts", "the limit is 1000 starts a ms"),
    ({"rate": StartRate(1, 0)}, "rate.per", "1 to"),
    ({"key_rate": StartRate(1, 31 * DAY + 1)}, "key_rate.per", "31 days"),
    ({"key_rate": StartRate(1, 1, 0)}, "key_rate.burst", "1 to"),
    ({"key_rate": StartRate(1, 1, 1_000_001)}, "key_rate.burst", "1 to"),
    ({"key_rate": StartRate(1, 31 * DAY, 12)}, "key_rate.burst", "366 days"),
    ({"key_rate": StartRate(1, 1.5)}, "key_rate.per", "whole number"),  # type: ignore[arg-type]
)


@pytest.mark.parametrize("patch", GOOD)
def test_a_setting_at_its_limit_is_taken(patch: dict[str, Any]) -> None:
    check_settings(SettingsPatch(**patch), limits=True)


@pytest.mark.parametrize(("patch", "field", "says"), BAD)
def test_a_setting_beyond_its_limit_is_refused(patch: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(Refused) as caught:
        check_settings(SettingsPatch(**patch), limits=True)

    assert field == caught.value.field
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["per_key", "rate", "key_rate"])
def test_a_storage_without_limits_takes_only_none(name: str) -> None:
    """The refusal names the capability that the storage lacks."""
    value: Any = 1 if name == "per_key" else StartRate(1, 1)
    none: dict[str, Any] = {name: None}
    check_settings(SettingsPatch(**none), limits=False)
    with pytest.raises(Refused, match="capability `limits`") as caught:
        check_settings(SettingsPatch(**{name: value}), limits=False)

    assert name == caught.value.field
