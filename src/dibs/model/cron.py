"""The times at which a cron expression runs, in a time zone. Each is called a tick, in ms since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from msgspec import Struct

from dibs.errors import Refused

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_SECOND: Final = timedelta(seconds=1)
_MINUTE: Final = timedelta(minutes=1)


class Cron(Struct, frozen=True, tag="cron"):
    """A cron expression in a time zone. It ticks when a clock on the wall in that zone matches.

    When clocks change for summer time:

    - A wall time that is skipped ticks at the next minute that exists.
    - A wall time that occurs twice ticks only the first time.
    - An expression that allows every hour, such as "*/5 * * * *", keeps its interval through both changes.

    The constructor raises Refused for a bad expression, for an unknown zone, and for an expression without
    a match in the next fifty years.
    """

    #: Five fields: minute hour day-of-month month day-of-week.
    expression: str
    #: The name of a time zone, as in "Europe/Berlin".
    tz: str = "UTC"

    def __post_init__(self) -> None:
        _check_expression(self.expression)
        _check_zone(self.tz)
        self.after(0)

    def after(self, instant: int) -> int:
        """Return the first tick later than `instant`, both in ms since the epoch."""
        zone = _zone(self.tz)
        since = _EPOCH + instant * _MILLISECOND
        walls = CronSim(self.expression, since.astimezone(zone).replace(tzinfo=None, fold=0))
        if len(walls.hours) == 24:
            return _to_ms(self._next_steady_tick(since, zone))
        for wall in walls:
            tick = _to_ms(_first_instant_of(wall, zone))
            if tick > instant:
                return tick
        raise _no_match_error(self.expression)

    def _next_steady_tick(self, since: datetime, zone: tzinfo) -> datetime:
        """Return the first tick after `since` of an expression that allows every hour.

        Such an expression is matched in the fixed UTC offset of `since`, so that its interval stays the same.
        """
        offset = _utc_offset(since, zone)
        moment = self._next_match(since + offset) - offset
        if _utc_offset(moment, zone) == offset:
            return moment
        # The offset of the zone changes before `moment`: search again from the change, with the new offset.
        change = _find_offset_change(since, moment, zone)
        offset = _utc_offset(change, zone)
        return self._next_match(change + offset - _SECOND) - offset

    def _next_match(self, since: datetime) -> datetime:
        """Return the first wall time after the wall time `since` that matches the expression."""
        try:
            return next(CronSim(self.expression, since))
        except StopIteration:
            raise _no_match_error(self.expression) from None


def _no_match_error(expression: str) -> Refused:
    return Refused(
        f"cron is {expression!r}, which matches no day in the next fifty years; name a day that exists",
        field="cron",
    )


def _utc_offset(moment: datetime, zone: tzinfo) -> timedelta:

    return moment.astimezone(zone).utcoffset() or timedelta()


def _find_offset_change(before: datetime, after: datetime, zone: tzinfo) -> datetime:
    """Return the time, exact to the second, at which the UTC offset changes. Search by bisection."""
    offset = _utc_offset(before, zone)
    before = before.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _utc_offset(middle, zone) == offset:
            before = middle
        else:
            after = middle
    return after


def _check_expression(expression: str) -> None:
    if why := _mistake_in(str(expression)):
        raise Refused(
            f"cron is {expression!r}: {why}; it has five fields, minute hour day-of-month month day-of-week, "
            'as in "*/5 * * * *"',
            field="cron",
        )


def _mistake_in(expression: str) -> str:
    """Return what is wrong with an expression; "" for a good one."""
    try:
        CronSim(expression, _EPOCH)
    # For a bad step, as in "*/0 * * * *", cronsim raises an AssertionError instead of a CronSimError.
    except (CronSimError, AssertionError) as error:
        return str(error).lower() or "bad step"
    # Six fields are seconds first for cronsim: one star too many would run a task each second.
    return "" if len(expression.split()) == 5 else "wrong number of fields"


def _zone(tz: str) -> tzinfo:
    # UTC needs no zoneinfo, which finds no zone on a system without time zone data, such as Alpine.
    return UTC if tz == "UTC" else ZoneInfo(tz)


def _check_zone(tz: str) -> None:
    try:
        _zone(tz)
    except (KeyError, ValueError, TypeError, OSError):
        raise Refused(
            f'tz is {tz!r}, which is no time zone on this system; use a name as in "Europe/Berlin" '
            "(if the system has no time zones, install tzdata; UTC needs none)",
            field="tz",
        ) from None


def _first_instant_of(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first time, in UTC, at which the zone shows this wall time.

    If the zone skips the wall time, return the time of the next minute that the zone shows.
    """
    while True:
        # The default, fold=0, is the first of two moments with the same wall time.
        moment = wall.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
            return moment
        wall = wall.replace(second=0) + _MINUTE


def _to_ms(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND
