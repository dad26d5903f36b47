"""The checks of the settings of a queue, for `configure`. Each check raises Refused."""

from __future__ import annotations

from typing import Final, get_args

from msgspec import UNSET

from dibs.errors import Refused
from dibs.model import rates
from dibs.model.check_arguments import check_choice
from dibs.model.check_jobs import check_retention
from dibs.model.check_values import (
    check_duration,
    check_flag,
    check_is_a,
    check_optional_number,
    check_whole_number,
)
from dibs.model.limits import DAY, SAFE_INTEGER
from dibs.model.requests import LogLevel, SettingsPatch, StartRate

#: The largest `per_key`, and the most starts and the largest burst of a rate.
MOST_STARTS: Final = 1_000_000
#: The longest result that the log of a queue may keep, in bytes.
MOST_LOG_RESULTS: Final = 4096
#: The longest period of a rate, in ms.
LONGEST_PER: Final = 31 * DAY
#: The highest rate, in starts per ms.
FASTEST_RATE: Final = 1000
#: The longest `burst * interval` of a rate, in us. All clocks then stay below 2**53.
LONGEST_BURST: Final = 366 * DAY * 1000

_LEVELS: Final = get_args(LogLevel)
_FLAGS: Final = ("paused", "fail_handler")
_LIMITS: Final = ("per_key", "rate", "key_rate")


def check_settings(patch: SettingsPatch, *, limits: bool) -> None:
    """Raise Refused if a setting of the patch has a wrong type or breaks a limit.

    `limits` is whether the storage has the capability of that name. Without it, the settings `per_key`,
    `rate` and `key_rate` may only be None.
    """
    check_is_a("patch", patch, SettingsPatch)
    for name in _FLAGS:
        if getattr(patch, name) is not UNSET:
            check_flag(name, getattr(patch, name))
    if patch.max_active is not UNSET:
        check_optional_number("max_active", patch.max_active, 0, SAFE_INTEGER)
    if patch.retention is not UNSET:
        check_retention("retention", patch.retention)
    _check_log(patch)
    if patch.request_key_age is not UNSET:
        check_duration("request_key_age", patch.request_key_age)
    _check_limits(patch, allowed=limits)


def _check_log(patch: SettingsPatch) -> None:
    if patch.log_level is not UNSET:
        check_choice("log_level", patch.log_level, _LEVELS)
    if patch.log_age is not UNSET:
        check_duration("log_age", patch.log_age)
    if patch.log_bytes is not UNSET:
        check_whole_number("log_bytes", patch.log_bytes, 0, SAFE_INTEGER)
    if patch.log_results is not UNSET:
        check_whole_number("log_results", patch.log_results, 0, MOST_LOG_RESULTS, " bytes")


def _check_limits(patch: SettingsPatch, *, allowed: bool) -> None:
    for name in _LIMITS:
        value = getattr(patch, name)
        if value is UNSET or value is None:
            continue
        if not allowed:
            raise Refused(
                f"{name} is set, but this storage does not have the capability `limits`; leave {name} out, "
                "or use a storage that has it",
                field=name,
            )
        if name == "per_key":
            check_whole_number(name, value, 1, MOST_STARTS)
        else:
            check_rate(name, value)


def check_rate(field: str, rate: object) -> None:
    """Raise Refused unless `rate` is a StartRate whose numbers keep the limits of the contract."""
    check_is_a(field, rate, StartRate)
    assert isinstance(rate, StartRate)  # noqa: S101 - for type checkers
    check_whole_number(f"{field}.starts", rate.starts, 1, MOST_STARTS)
    check_whole_number(f"{field}.per", rate.per, 1, LONGEST_PER, " ms (31 days)")
    check_whole_number(f"{field}.burst", rate.burst, 1, MOST_STARTS)
    if rate.starts > FASTEST_RATE * rate.per:
        raise Refused(
            f"{field}.starts is {rate.starts} in {rate.per} ms; the limit is {FASTEST_RATE} starts a ms",
            field=f"{field}.starts",
        )
    if rate.burst * rates.interval(rate) > LONGEST_BURST:
        raise Refused(
            f"{field}.burst is {rate.burst}, and it takes more than 366 days until such a burst is allowed "
            "again; lower burst, or raise starts",
            field=f"{field}.burst",
        )
