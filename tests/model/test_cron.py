"""The ticks of cron expressions in time zones, also around a change of the offset."""

from __future__ import annotations

import sys
import zoneinfo
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import Refused
from dibs.model.cron import Cron

MINUTE = 60_000
DAY = 86_400_000


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def shown(instant: int, tz: str) -> str:
    return datetime.fromtimestamp(instant / 1000, ZoneInfo(tz)).isoformat(timespec="minutes")


# Time zone, expression, start, and the expected ticks as wall times of the zone.
TABLE = {
    "an ordinary day": (
        "Europe/Berlin", "0 9 * * *", "2026-01-05T00:00+00:00",
        ["2026-01-05T09:00+01:00", "2026-01-06T09:00+01:00"],
    ),
    "summer begins: what does not exist runs at the next that does": (
        "Europe/Berlin", "30 2 * * *", "2026-03-28T00:00+00:00",
        ["2026-03-28T02:30+01:00", "2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
    ),
    "summer begins: several that do not exist run once": (
        "Europe/Berlin", "*/20 2 * * *", "2026-03-28T01:40+00:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"],
    ),
    "summer begins: together with the one that does exist": (
        "Europe/Berlin", "0 2,3 * * *", "2026-03-28T12:00+00:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00"],
    ),
    "summer begins: every second hour": (
        "Europe/Berlin", "0 */2 * * *", "2026-03-28T23:30+01:00",
        ["2026-03-29T00:00+01:00", "2026-03-29T03:00+02:00", "2026-03-29T04:00+02:00"],
    ),
    "summer ends: what occurs twice runs once": (
        "Europe/Berlin", "30 2 * * *", "2026-10-24T03:00+00:00",
        ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
    ),
    "summer ends: several, once each": (
        "Europe/Berlin", "*/30 2 * * *", "2026-10-24T03:00+00:00",
        ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-26T02:00+01:00"],
    ),
    "summer ends: asked in the second of the two hours": (
        "Europe/Berlin", "45 2 * * *", "2026-10-25T02:30+01:00", ["2026-10-26T02:45+01:00"],
    ),
    "summer ends: asked between the first and the second": (
        "Europe/Berlin", "15,45 2 * * *", "2026-10-25T02:30+02:00",
        ["2026-10-25T02:45+02:00", "2026-10-26T02:15+01:00"],
    ),
    "summer begins: a rhythm has no gap": (
        "Europe/Berlin", "*/30 * * * *", "2026-03-29T01:00+01:00",
        ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"],
    ),
    "summer ends: a rhythm has no gap": (
        "Europe/Berlin", "*/30 * * * *", "2026-10-25T02:00+02:00",
        ["2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00"],
    ),
    "a rhythm may spell its hours out": (
        "Europe/Berlin", "15 0-23 * * *", "2026-10-25T02:00+02:00",
        ["2026-10-25T02:15+02:00", "2026-10-25T02:15+01:00", "2026-10-25T03:15+01:00"],
    ),
    "a rhythm where the clock is put back by half an hour": (
        "Australia/Lord_Howe", "30 * * * *", "2026-04-05T01:15+11:00",
        ["2026-04-05T01:30+11:00", "2026-04-05T01:30+10:30", "2026-04-05T02:30+10:30"],
    ),
    "a gap at midnight": (
        "Africa/Cairo", "0 0 * * *", "2026-04-23T12:00+02:00",
        ["2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00"],
    ),
    "half an hour": (
        "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00+10:30",
        ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
    ),
    "half an hour, twice": (
        "Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00+11:00",
        ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
    ),
    "a day that does not exist": (
        "Pacific/Apia", "0 12 * * *", "2011-12-29T00:00-10:00",
        ["2011-12-29T12:00-10:00", "2011-12-31T00:00+14:00", "2011-12-31T12:00+14:00"],
    ),
    "New York": (
        "America/New_York", "30 2 * * 0", "2026-03-02T00:00+00:00",
        ["2026-03-08T03:00-04:00", "2026-03-15T02:30-04:00"],
    ),
    "the last day of the month": (
        "UTC", "0 0 L * *", "2028-02-01T00:00+00:00", ["2028-02-29T00:00+00:00", "2028-03-31T00:00+00:00"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("tz", "expression", "since", "expected"), TABLE.values(), ids=TABLE)
def test_a_clock_on_the_wall(tz: str, expression: str, since: str, expected: list[str]) -> None:
    cron, found = Cron(expression, tz), [ms(since)]
    for _ in expected:
        found.append(cron.after(found[-1]))

    assert expected == [shown(tick, tz) for tick in found[1:]]


def test_a_tick_is_later_than_what_was_asked_to_the_millisecond() -> None:
    nine = ms("2026-01-05T09:00+00:00")
    cron = Cron("0 9 * * *")

    assert [nine, nine + DAY, nine + DAY] == [cron.after(nine - 1), cron.after(nine), cron.after(nine + 1)]


def test_utc_needs_no_time_zone_data(monkeypatch: pytest.MonkeyPatch) -> None:
    since = ms("2026-01-05T09:30+00:00")
    ticks = [Cron(expression, "Etc/UTC").after(since) for expression in ("0 * * * *", "0 9 * * *")]
    # A test that asked for an unknown zone has loaded tzdata.zoneinfo.Europe, found without its parent.
    for name in [name for name in sys.modules if name.startswith("tzdata.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath(())
    ZoneInfo.clear_cache()
    try:
        assert ticks == [Cron("0 * * * *").after(since), Cron("0 9 * * *").after(since)]
        with pytest.raises(Refused, match="UTC needs none"):
            Cron("0 9 * * *", "Europe/Berlin")
    finally:
        zoneinfo.reset_tzpath()


# A second, naive computation: check every minute around a change of the offset.

CHANGES = {
    "Europe/Berlin": ("2026-03-29T01:00+00:00", "2026-10-25T01:00+00:00"),
    "America/New_York": ("2026-03-08T07:00+00:00", "2026-11-01T06:00+00:00"),
    "Australia/Lord_Howe": ("2026-04-04T15:00+00:00", "2026-10-03T15:30+00:00"),
    "Africa/Cairo": ("2026-04-23T22:00+00:00", "2026-10-29T21:00+00:00"),
    "Pacific/Apia": ("2011-12-30T10:00+00:00",),
    "Asia/Kathmandu": ("2026-05-05T05:05+00:00",),
}
PLACES = [(tz, change) for tz, changes in CHANGES.items() for change in changes]
AROUND = 2 * 24 * 60


@lru_cache
def walked(tz: str, change: str) -> list[tuple[int, datetime]]:
    """Return each minute around a change of the offset, with its wall time."""
    middle, zone = datetime.fromisoformat(change), ZoneInfo(tz)
    minutes = [middle + timedelta(minutes=n) for n in range(-AROUND, AROUND)]
    return [(round(at.timestamp() * 1000), at.astimezone(zone).replace(tzinfo=None)) for at in minutes]


def naively(tz: str, change: str, minutes: set[int], hours: set[int]) -> list[int]:
    """Return all ticks around a change of the offset, computed naively."""
    walk = walked(tz, change)
    if len(hours) == 24:
        return [at for at, wall in walk if wall.minute in minutes]
    first = {wall: at for at, wall in reversed(walk)}
    ticks, wall = set(), walk[0][1]
    while wall <= walk[-1][1]:
        if wall.minute in minutes and wall.hour in hours:
            ticks.add(first[wall] if wall in first else min(at for at, shown in walk if shown > wall))
        wall += timedelta(minutes=1)
    return sorted(ticks)


def named(numbers: set[int]) -> str:
    return ",".join(map(str, sorted(numbers)))


@given(
    st.sampled_from(PLACES),
    st.sets(st.integers(0, 59), min_size=1, max_size=4),
    st.sets(st.integers(0, 4), min_size=1) | st.just(set(range(24))),
    st.integers(-26 * 60 * MINUTE, 10 * 60 * MINUTE),
)
def test_cron_agrees_with_a_walk(
    place: tuple[str, str], minutes: set[int], hours: set[int], from_change: int
) -> None:
    cron = Cron(f"{named(minutes)} {named(hours)} * * *", place[0])
    since = ms(place[1]) + from_change
    expected = [tick for tick in naively(*place, minutes, hours) if tick > since][:3]
    found = [since]
    for _ in expected:
        found.append(cron.after(found[-1]))

    assert expected == found[1:]


@given(st.sampled_from(PLACES), st.sampled_from([expression for _, expression, _, _ in TABLE.values()]))
def test_ticks_go_on(place: tuple[str, str], expression: str) -> None:
    cron, ticks = Cron(expression, place[0]), [ms(place[1]) - DAY]
    for _ in range(5):
        ticks.append(cron.after(ticks[-1]))

    assert all(earlier < later for earlier, later in pairwise(ticks))


@pytest.mark.parametrize(
    ("expression", "tz", "field", "why"),
    [
        ("61 * * * *", "UTC", "cron", "bad minute"),
        ("* 24 * * *", "UTC", "cron", "bad hour"),
        ("* * * *", "UTC", "cron", "wrong number of fields"),
        ("", "UTC", "cron", "five fields"),
        ("0 0 31 2 *", "UTC", "cron", "bad day-of-month"),
        ("0 0 * 2 MON#5,8", "UTC", "cron", "bad day-of-week"),
        (None, "UTC", "cron", "None"),
        (5, "UTC", "cron", "five fields"),
        ("0 0 * * *", "Europe/Berlim", "tz", "Europe/Berlim"),
        ("0 0 * * *", "", "tz", "no time zone"),
        ("0 0 * * *", "Europe", "tz", "no time zone"),
        ("0 0 * * *", "../etc/passwd", "tz", "no time zone"),
        ("0 0 * * *", None, "tz", "no time zone"),
    ],
)
def test_a_bad_expression_names_what_is_wrong(expression: str, tz: str, field: str, why: str) -> None:
    with pytest.raises(Refused, match=why) as refused:
        Cron(expression, tz)

    assert field == refused.value.field


@given(st.text("0123456789*/,-#LWMON ", max_size=20))
def test_whatever_is_no_expression_is_refused(text: str) -> None:
    try:
        cron = Cron(text)
    except Refused as refused:
        assert "cron" == refused.field  # noqa: PT017 - or it is one, and then it has ticks
    else:
        assert cron.after(DAY) > DAY
