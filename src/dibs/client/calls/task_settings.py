"""The options of a task, and the conversion of `every`, `cron`, `tz` and `catch_up` to a schedule."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from dibs.client.calls.handler_registry import HandlerSettings
from dibs.client.calls.signature import CallSignature
from dibs.client.calls.task_key import KeyFunction, TaskKey
from dibs.client.options.durations import Seconds, duration_ms
from dibs.client.options.serde import Serde
from dibs.errors import BadHandler, Refused
from dibs.model.job import JobData
from dibs.model.schedule import Every, Schedule

if TYPE_CHECKING:
    from dibs.model.cron import Cron


class TaskSettings(HandlerSettings, total=False):
    """Options of `@app.task(...)`: those of a handler, the key, and four for a periodic task."""

    key: str | KeyFunction
    """The key of each job, for `per_key` and `key_rate`: the name of a parameter, or a function that takes
    the arguments of the call and returns text, a whole number, or None for no key. Default: no key."""
    every: Seconds
    """Interval of a periodic task: seconds, a timedelta, or text like "5m" or "1h30m". The task runs at the
    multiples of the interval since 1970 in UTC. Default: not periodic."""
    cron: str
    """Times of a periodic task: minute, hour, day of month, month, day of week, as in "0 3 * * *". Default:
    not periodic."""
    tz: str
    """Time zone of `cron`, as in "Europe/Berlin". Default: "UTC"."""
    catch_up: bool
    """True runs the task once after it missed ticks; False skips to the next tick. Default: True."""


SCHEDULE_SETTINGS: Final = frozenset({"every", "cron", "tz", "catch_up"})

_LONGEST_INTERVAL: Final = timedelta(days=3660)


def build_schedule(
    call: CallSignature, serde: Serde, settings: Mapping[str, Any], key: TaskKey | None = None
) -> Schedule | None:
    """Return the schedule of a task's options, or None without one. Raises Refused, BadHandler."""
    options = {name: settings[name] for name in SCHEDULE_SETTINGS if settings.get(name) is not None}
    if not options:
        return None
    if options.keys() == {"catch_up"}:
        raise Refused("catch_up is set without a schedule; pass every or cron, too", field="catch_up")
    times = build_times(options)
    catch_up = options.get("catch_up", True)
    if not isinstance(catch_up, bool):
        raise Refused(f"catch_up is {catch_up!r}; it must be True or False", field="catch_up")
    payload = _payload_without_arguments(call, serde)
    data = JobData(payload=payload, key=None if key is None else key.derive((), {}))
    return Schedule(times=times, data=data, catch_up=catch_up)


def build_times(options: Mapping[str, Any]) -> Every | Cron:
    """Return the times of `cron` and `tz`, or of `every`; None is no value. Raises Refused."""
    cron, every, tz = (options.get(name) for name in ("cron", "every", "tz"))
    if cron is not None and every is not None:
        raise Refused("every and cron are both set; pass only one", field="cron")
    if cron is not None:
        from dibs.model.cron import Cron  # noqa: PLC0415 - imports calendars and time zones, which only this option needs

        return Cron(cron, "UTC" if tz is None else tz)
    if tz is not None:
        raise Refused("tz is set without cron; pass cron, too, or leave tz out", field="tz")
    if every is None:
        raise Refused("cron and every are both missing; pass one of them", field="cron")
    return Every(interval_ms(every))


def interval_ms(every: Seconds) -> int:
    """Return an interval in ms. Raises Refused unless it is more than 0 and at most ten years."""
    ms = duration_ms("every", every)
    if not 1 <= ms <= duration_ms("every", _LONGEST_INTERVAL):
        raise Refused(f"every is {every}; it must be at least 1 ms and at most ten years", field="every")
    return ms


def _payload_without_arguments(call: CallSignature, serde: Serde) -> bytes:
    try:
        return call.encode_arguments(serde, (), {})
    except Refused as refused:
        name = call.function.__name__
        raise BadHandler(
            f"{name} is periodic, so it is called without arguments; "
            f"add a default to each parameter: {refused}"
        ) from None
