"""Settings of a queue, the arguments of `queue.configure`, with `Rate`, and their conversion to ms."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import gcd
from typing import Any, Final, TypedDict

from attrs import frozen

from dibs.client.options.arguments import Seconds, duration_ms
from dibs.client.options.job_settings import Retention, build_retention, check_setting_names
from dibs.errors import Refused
from dibs.model.check_arguments import check_rate, check_settings
from dibs.model.check_values import check_whole_number
from dibs.model.duration_text import format_duration
from dibs.model.limits import MOST_COST, SAFE_INTEGER, START_COST
from dibs.model.plain_values import to_plain_text
from dibs.model.requests import LogLevel, SettingsPatch, StartRate, WhenFull


@frozen
class Rate:
    """A limit on how often runs start: `starts` in `per` seconds, evenly spread.

    `Rate(10, per=60)` starts a run every 6 seconds at most. With `burst=5`, five runs may start at once after
    a pause. Pass it as `rate` or `key_rate` to `@app.task` or `queue.configure`, which also take it
    as text: "10/m", or "5/s burst 10".

    `Rate(100_000, per="1m", unit=1_000)` limits what runs spend, for example tokens: it counts each start as
    1,000, and `current_job().spent(3_200)` corrects that when the run ends. It is stored as
    `Rate(100, per="1m")`; `burst` still counts runs. As text: "100000/m unit 1000".

    Raises Refused for a number that a storage would refuse (contract 4, Limits).
    """

    starts: int
    """Number of starts in each period, 1 to 1,000,000."""
    per: Seconds
    """Length of the period, at most 31 days: seconds, text such as "5m", or a timedelta."""
    burst: int = 1
    """Number of runs that may start at once after a pause, 1 to 1,000,000."""
    unit: int | None = None
    """The estimate of what one run spends, 1 to 1,000,000,000; `starts` then counts what runs spend. None for
    a rate of starts."""

    def __attrs_post_init__(self) -> None:
        try:
            check_rate("Rate", self.to_model())
        except Refused as refused:
            raise Refused(str(refused), field=refused.field.removeprefix("Rate.")) from None

    def __repr__(self) -> str:
        unit = "" if self.unit is None else f", unit={self.unit!r}"
        return f"Rate(starts={self.starts!r}, per={self.per!r}, burst={self.burst!r}{unit})"

    def to_model(self) -> StartRate:
        """Return the rate of starts in ms. Raises Refused for a bad `unit` or a `per` that is no duration."""
        starts, per = self.starts, duration_ms("per", self.per)
        if self.unit is not None:
            check_whole_number("unit", self.unit, 1, MOST_COST)
            check_whole_number("starts", starts, 1, SAFE_INTEGER)
            shared = gcd(starts, self.unit)
            starts, per = starts // shared, per * (self.unit // shared)
        return StartRate(starts, per, self.burst)

    @classmethod
    def from_model(cls, stored: StartRate) -> Rate:
        """Return a stored rate, with `per` in seconds."""
        return cls(stored.starts, stored.per / 1000, stored.burst)


_TEXT: Final = re.compile(
    r"(?P<starts>\d{1,12})/(?P<per>[^\s/]{1,50})(?: unit (?P<unit>\d{1,12}))?"
    r"(?: burst (?P<burst>\d{1,12}))?"
)


def parse_rate(field: str, text: str) -> Rate:
    """Return the rate of a text: starts, a slash, and a duration or its unit alone, as in "5/s" or "10/30s".

    A first burst may follow, as in "5/s burst 10", and before it a unit, as in "100000/m unit 1000". Raises
    Refused naming `field`.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        raise Refused(
            f"{field} is {text!r:.60}; write it as 5/s, 10/m, '5/s burst 10' or '100000/m unit 1000'",
            field=field,
        )
    per = found["per"] if found["per"][0].isdecimal() else f"1{found['per']}"
    try:
        unit = int(found["unit"]) if found["unit"] else None
        return Rate(int(found["starts"]), per, int(found["burst"] or 1), unit)
    except Refused as refused:
        raise Refused(f"{field} is {text!r}: {refused}", field=field) from None


def build_rate(field: str, value: Any) -> StartRate | None:
    """Return the value of a `rate=` or `key_rate=` parameter in ms; None is no limit. Raises Refused."""
    rate = _read_rate(field, value)
    return None if rate is None else rate.to_model()


def declared_unit(settings: Mapping[str, Any]) -> int:
    """Return the unit of `rate` or `key_rate` among the options of a task; 1,000, of a start, without one.

    Raises Refused if the two have different units: a run has one cost, which counts for both.
    """
    rates = [_read_rate(name, settings.get(name)) for name in ("rate", "key_rate")]
    units = {rate.unit for rate in rates if rate is not None and rate.unit is not None}
    if len(units) > 1:
        raise Refused(
            f"rate and key_rate have the units {min(units)} and {max(units)}; use the same unit in both",
            field="key_rate",
        )
    return units.pop() if units else START_COST


def _read_rate(field: str, value: Any) -> Rate | None:
    if value is None:
        return None
    rate = parse_rate(field, value) if isinstance(value, str) else value
    if not isinstance(rate, Rate):
        raise Refused(
            f"{field} is {value!r:.60}; pass Rate(10, per=60), text such as '10/m', or None for no limit",
            field=field,
        )
    return rate


def format_rate(rate: StartRate) -> str:
    """Return the text of a rate, which `parse_rate` accepts."""
    per = re.sub(r"^1(?=[a-z]+$)", "", format_duration(rate.per))
    return f"{rate.starts}/{per}" + (f" burst {rate.burst}" if rate.burst != 1 else "")


class QueueSettings(TypedDict, total=False):
    """Settings of a queue, for `queue.configure`. A missing setting keeps its current value."""

    paused: bool
    """True stops claims from taking jobs; running jobs continue."""
    max_active: int | None
    """Most jobs that are active under leases at the same time; None is without limit."""
    per_key: int | None
    """Most jobs of one key that are active under leases at the same time; None is without limit."""
    rate: Rate | str | None
    """The rate at which runs of the queue may start, as in `Rate(5, per=1)` or "5/s"; None for no limit."""
    key_rate: Rate | str | None
    """The rate at which runs of one key may start, as in `Rate(10, per=60)` or "10/m"; None for no limit."""
    max_waiting: int | None
    """Most waiting jobs, due or not, at which an enqueue still makes a new one; None is without bound."""
    when_full: WhenFull
    """The answer to a new job at `max_waiting`: "refuse" raises QueueFull, "drop_new" drops the job, and its
    ticket says so."""
    fair: bool
    """True if keys take turns: each claim takes the next job of the key whose turn it is."""
    shares: Mapping[str, int | None]
    """Starts in a turn by key, 0 to 1,000; 0 pauses a key, None removes its entry. Other keys keep theirs."""
    retention: Retention | Seconds | None
    """Seconds that outcomes are kept, for jobs without a retention; None is for ever."""
    log_level: LogLevel
    """The events that the log keeps: `off`, `runs` (the end of each attempt) or `all`."""
    log_age: Seconds
    """Seconds that the log keeps an event."""
    log_bytes: int
    """Size of the log in bytes. The storage removes the oldest events above it."""
    log_results: int
    """Longest result that the log keeps with the end of a completed run, in bytes, at most 4,096; 0 keeps no
    result in the log."""
    request_key_age: Seconds
    """Seconds that the storage remembers a request_key."""
    fail_handler: bool
    """True if each job that fails permanently gets a job of the failure handler, whoever ends it. Workers
    with a failure handler set it when they start."""


QUEUE_SETTINGS: Final = frozenset(QueueSettings.__annotations__)


def build_patch(changes: QueueSettings) -> SettingsPatch:
    """Return the changes as a patch for `Storage.configure`. Raises Refused."""
    check_setting_names(changes, QUEUE_SETTINGS)
    patch: dict[str, Any] = dict(changes)
    for name in ("rate", "key_rate"):
        if name in patch:
            patch[name] = build_rate(name, patch[name])
    for name in ("log_age", "request_key_age"):
        if name in patch:
            patch[name] = duration_ms(name, patch[name])
    for name in ("log_level", "when_full"):
        if name in patch:
            patch[name] = to_plain_text(patch[name])
    if "retention" in patch:
        patch["retention"] = build_retention(patch["retention"])
    built = SettingsPatch(**patch)
    check_settings(built, limits=True, fair=True)
    return built
