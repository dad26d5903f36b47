"""The times that an expression of cron names on the clock of a zone. Times are ms since the epoch, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
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
    """At the wall times in a zone that an expression of five fields names, or of six with seconds first.

    A wall time that does not exist runs at the next that does; one that occurs twice runs the first time.
    An expression with every hour in it names no wall time but a rhythm, and that has no gap: it goes on
    through an hour that occurs twice. Raises Refused naming `cron` or `tz`.
    """

    expression: str
    tz: str = "UTC"

    def __post_init__(self) -> None:
        _check_expression(self.expression)
        _check_zone(self.tz)
        self.after(0)

    def after(self, instant: int) -> int:
        """Return the first tick later than the instant."""
        zone = ZoneInfo(self.tz)
        since = _EPOCH + instant * _MILLISECOND
        walls = CronSim(self.expression, since.astimezone(zone).replace(tzinfo=None, fold=0))
        if len(walls.hours) == 24:
            return _ms(self._beat(since, zone))
        for wall in walls:
            tick = _ms(_existing(wall, zone))
            if tick > instant:
                return tick
        raise _never(self.expression)

    def _beat(self, since: datetime, zone: ZoneInfo) -> datetime:
        """Return the first moment later than this at which the clock on the wall shows a time of ours."""
        ahead = _ahead(since, zone)
        moment = self._wall(since + ahead) - ahead
        if _ahead(moment, zone) == ahead:
            return moment
        # The clock is changed before that: from then on it is another clock.
        change = _change(since, moment, zone)
        ahead = _ahead(change, zone)
        return self._wall(change + ahead - _SECOND) - ahead

    def _wall(self, since: datetime) -> datetime:
        """Return the first of our times later than this, on a clock that nobody changes."""
        try:
            return next(CronSim(self.expression, since))
        except StopIteration:
            raise _never(self.expression) from None


def _never(expression: str) -> Refused:
    return Refused(f"cron is {expression!r}: there is no such day in fifty years", field="cron")


def _ahead(moment: datetime, zone: ZoneInfo) -> timedelta:
    """Return how far the clock on the wall is ahead of UTC."""
    return moment.astimezone(zone).utcoffset() or timedelta()


def _change(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the second between two moments in which the clock on the wall was changed."""
    ahead = _ahead(before, zone)
    before = before.replace(microsecond=0)
    while after - before > _SECOND:
        middle = before + (after - before) // _SECOND // 2 * _SECOND
        if _ahead(middle, zone) == ahead:
            before = middle
        else:
            after = middle
    return after


def _check_expression(expression: str) -> None:
    try:
        CronSim(str(expression), _EPOCH)
    # Where it stumbles over a step, the library has an assertion.
    except (CronSimError, AssertionError) as error:
        why = str(error).lower() or "bad step"
        raise Refused(
            f"cron is {expression!r}: {why}; it has five fields, minute hour day-of-month month day-of-week, "
            'as in "*/5 * * * *"',
            field="cron",
        ) from None


def _check_zone(tz: str) -> None:
    try:
        ZoneInfo(tz)
    except (KeyError, ValueError, TypeError, OSError):
        raise Refused(
            f'tz is {tz!r}, which is no time zone here; they are called as in "Europe/Berlin" '
            "(where the system has none at all, install tzdata)",
            field="tz",
        ) from None


def _existing(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return when a clock on the wall first shows this time, or else the next time it does show."""
    while True:
        # fold=0, as it is unless said otherwise: the first of two.
        moment = wall.replace(tzinfo=zone).astimezone(UTC)
        if moment.astimezone(zone).replace(tzinfo=None, fold=0) == wall:
            return moment
        wall = wall.replace(second=0) + _MINUTE


def _ms(moment: datetime) -> int:
    return (moment.astimezone(UTC) - _EPOCH) // _MILLISECOND
