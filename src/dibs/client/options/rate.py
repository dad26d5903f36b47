"""`Rate`, the limit on how often runs of a queue start, and its conversion to ms, the unit of storages."""

from __future__ import annotations

import re
from typing import Any, Final

from attrs import frozen

from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import Refused
from dibs.model.check_settings import check_rate
from dibs.model.duration_text import format_duration
from dibs.model.requests import StartRate


@frozen
class Rate:
    """A limit on how often runs start: `starts` in `per` seconds, evenly spread.

    `Rate(10, per=60)` starts a run every 6 seconds at most. With `burst=5`, five runs may start at once after
    a pause. Pass it as `rate` or `key_rate` to `@app.task` or `queue.configure`.

    Raises Refused for a number that a storage would refuse (contract 4, Limits).
    """

    starts: int
    """Number of starts in each period, 1 to 1,000,000."""
    per: Seconds
    """Length of the period, at most 31 days: seconds, text such as "5m", or a timedelta."""
    burst: int = 1
    """Number of runs that may start at once after a pause, 1 to 1,000,000."""

    def __attrs_post_init__(self) -> None:
        try:
            check_rate("Rate", self.to_model())
        except Refused as refused:
            raise Refused(str(refused), field=refused.field.removeprefix("Rate.")) from None

    def to_model(self) -> StartRate:
        """Return the rate in ms. Raises Refused for a `per` that is not a duration."""
        return StartRate(self.starts, duration_ms("per", self.per), self.burst)

    @classmethod
    def from_model(cls, stored: StartRate) -> Rate:
        """Return a stored rate, with `per` in seconds."""
        return cls(stored.starts, stored.per / 1000, stored.burst)


_TEXT: Final = re.compile(r"(?P<starts>\d{1,12})/(?P<per>[^\s/]{1,50})(?: burst (?P<burst>\d{1,12}))?")


def parse_rate(field: str, text: str) -> Rate:
    """Return the rate of a text: starts, a slash, and a duration or its unit alone, as in "5/s" or "10/30s".

    A first burst may follow, as in "5/s burst 10". Raises Refused naming `field`.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise Refused(f"{field} is {text!r:.60}; write it as 5/s, 10/m or '5/s burst 10'", field=field)
    per = found["per"] if found["per"][0].isdecimal() else f"1{found['per']}"
    try:
        return Rate(int(found["starts"]), per, int(found["burst"] or 1))
    except Refused as refused:
        raise Refused(f"{field} is {text!r}: {refused}", field=field) from None


def build_rate(field: str, value: Any) -> StartRate | None:
    """Return the value of a `rate=` or `key_rate=` parameter in ms; None is no limit. Raises Refused."""
    if value is None:
        return None
    if not isinstance(value, Rate):
        raise Refused(
            f"{field} is {value!r:.60}; pass a Rate, as in Rate(10, per=60), or None for no limit",
            field=field,
        )
    return value.to_model()


def format_rate(rate: StartRate) -> str:
    """Return the text of a rate, which `parse_rate` accepts."""
    per = re.sub(r"^1(?=[a-z]+$)", "", format_duration(rate.per))
    return f"{rate.starts}/{per}" + (f" burst {rate.burst}" if rate.burst != 1 else "")
