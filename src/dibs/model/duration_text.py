"""Durations that are written as text, such as "5m" or "1h30m": parsing and formatting."""

from __future__ import annotations

import re
from typing import Final

SECONDS_PER_UNIT: Final[dict[str, float]] = {
    "ms": 0.001,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86_400,
    "w": 604_800,
}
#: Compiled at the first use, to keep `import dibs` fast.
_NUMBER_WITH_UNIT: Final = r"(\d+(?:\.\d+)?)(ms|[smhdw])"


def parse_seconds(field: str, text: str) -> float:
    """Return the seconds of a text of numbers with units: "1h30m" gives 5400.0, "250ms" 0.25.

    Spaces between the parts are allowed. Raises ValueError, with a message that names `field`, for any other
    text, also for a number without a unit. A number beyond the range of floats gives infinity.
    """
    parts = re.findall(_NUMBER_WITH_UNIT, text, re.ASCII)
    if not parts or "".join(text.split(" ")) != "".join(number + unit for number, unit in parts):
        units = ", ".join(SECONDS_PER_UNIT)
        raise ValueError(
            f'{field} is {text!r:.80}; write numbers with the units {units}, as in "5m" or "1h30m", '
            "or pass a number of seconds"
        )
    return sum(float(number) * SECONDS_PER_UNIT[unit] for number, unit in parts)


def format_duration(ms: int) -> str:
    """Return a duration with units, which `parse_seconds` accepts: 5400000 gives "1h30m"."""
    parts, rest = [], ms
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        if count := rest // length:
            parts.append(f"{count}{unit}")
        rest %= length
    return "".join(parts) or "0s"
