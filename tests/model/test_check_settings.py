"""The limits and turns of keys, on a storage that has none. The kit tries each setting beyond its limit."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.errors import Refused
from dibs.model.check_arguments import check_settings
from dibs.model.requests import SettingsPatch, StartRate


@pytest.mark.parametrize("name", ["per_key", "rate", "key_rate"])
def test_a_storage_without_limits_takes_only_none(name: str) -> None:
    """The refusal names the capability that the storage lacks."""
    value: Any = 1 if name == "per_key" else StartRate(1, 1)
    none: dict[str, Any] = {name: None}
    check_settings(SettingsPatch(**none), limits=False, fair=True)
    with pytest.raises(Refused, match="capability `limits`") as caught:
        check_settings(SettingsPatch(**{name: value}), limits=False, fair=True)

    assert name == caught.value.field


@pytest.mark.parametrize("patch", [{"fair": True}, {"shares": {"k": 1}}, {"shares": {"k": None}}], ids=str)
def test_a_storage_without_turns_takes_only_defaults(patch: dict[str, Any]) -> None:
    check_settings(SettingsPatch(fair=False, shares={}), limits=True, fair=False)
    with pytest.raises(Refused, match="capability `fair`") as caught:
        check_settings(SettingsPatch(**patch), limits=True, fair=False)

    assert [caught.value.field] == [*patch]
