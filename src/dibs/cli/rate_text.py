"""Rates as text, for `dibs configure` and `dibs show`: "5/s", "10/1m30s", "5/s burst 10"."""

from __future__ import annotations

import re
from typing import Final

from dibs.cli.errors import UsageError
from dibs.cli.json_output import format_duration
from dibs.client.options.rate import Rate
from dibs.errors import Refused
from dibs.model.requests import StartRate

_RATE: Final = re.compile(r"(?P<starts>\d+)/(?P<per>\S+)(?: burst (?P<burst>\d+))?")


def parse_rate(option: str, text: str) -> Rate:
    """Return the rate of a text: starts, a slash, and a duration or its unit alone, as in "5/s" or "10/30s".

    A first burst may follow, as in "5/s burst 10". Raises UsageError naming the option.
    """
    found = _RATE.fullmatch(text)
    if found is None or len(text) > 100:
        raise UsageError(f"{option} is {text!r:.60}; write it as 5/s, 10/m or '5/s burst 10', or none")
    per = found["per"] if found["per"][0].isdecimal() else f"1{found['per']}"
    try:
        return Rate(int(found["starts"]), per, int(found["burst"] or 1))
    except Refused as refused:
        raise UsageError(f"{option} is {text!r}: {refused}") from None


def format_rate(rate: StartRate) -> str:
    """Return the text of a rate, which `parse_rate` accepts."""
    per = re.sub(r"^1(?=[a-z]+$)", "", format_duration(rate.per))
    return f"{rate.starts}/{per}" + (f" burst {rate.burst}" if rate.burst != 1 else "")
