"""Values and their texts: JSON, NAME=JSON pairs, delays, times, and the settings of a queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET

from dibs.cli.errors import UsageError
from dibs.client.options import queue_settings
from dibs.client.options.arguments import duration_ms, epoch_ms
from dibs.client.options.job_settings import ENDS
from dibs.client.options.queue_settings import Rate, format_rate
from dibs.errors import Refused
from dibs.model.duration_text import format_duration
from dibs.model.job import DEFAULT_RETENTION, OutcomeRetention
from dibs.model.requests import Settings


def parse_json(text: str, name: str) -> Any:
    """Return the value of a JSON text. The text `-` stands for stdin."""
    raw = sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = f"""; write a string with quotes of its own, as '"{text}"'""" if text.isidentifier() else ""
        reason = str(error).removeprefix("JSON is malformed: ")
        raise UsageError(f"{name} is not valid JSON: {reason}{hint}") from None


def parse_pairs(texts: Sequence[str], name: str) -> dict[str, Any]:
    """Return NAME=JSON pairs as a dictionary: ["tries=3"] gives {"tries": 3}."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise UsageError(f"{name} is {text!r}; write it as NAME=JSON, for example tries=3")
        pairs[key] = parse_json(value, f"{name} {key}")
    return pairs


def delay_ms(seconds: float | None) -> int | None:
    """Return the value of --delay in ms; None if the option is absent."""
    return None if seconds is None else duration_ms("--delay", seconds)


def parse_moment(text: str, name: str) -> datetime:
    """Return an ISO 8601 time, which must have a time zone. Raises UsageError, Refused."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{name} is {text!r}; write a time as 2030-01-31T09:00:00+01:00") from None
    if moment.tzinfo is None:
        raise UsageError(
            f"{name} is {text!r}, which has no time zone; write one, as in {moment.isoformat()}Z"
        )
    epoch_ms(name, moment)
    return moment


def parse_time(text: str, name: str) -> int:
    """Return an ISO 8601 time with a time zone as ms since the epoch."""
    return epoch_ms(name, parse_moment(text, name))


def parse_rate(option: str, text: str) -> Rate:
    """Return the rate of a text such as "5/s burst 10". Raises UsageError naming the option."""
    try:
        return queue_settings.parse_rate(option, text)
    except Refused as refused:
        raise UsageError(f"{refused}; none is no limit") from None


#: Texts that stand for the value None of a limit and of a retention.
NO_LIMIT: Final = "none"
FOR_EVER: Final = "forever"


def setting_rows(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield all settings of a queue as (name, text), with durations such as "1h30m"."""
    yield "paused", "yes" if settings.paused else "no"
    for name in ("max_active", "per_key"):
        number = getattr(settings, name)
        yield name, NO_LIMIT if number is None else str(number)
    for name in ("rate", "key_rate"):
        rate = getattr(settings, name)
        yield name, NO_LIMIT if rate is None else format_rate(rate)
    yield "max_waiting", NO_LIMIT if settings.max_waiting is None else str(settings.max_waiting)
    yield "when_full", settings.when_full
    yield "fair", "yes" if settings.fair else "no"
    yield from ((f"share {key}", str(share)) for key, share in settings.shares.items())
    yield from ((f"retention {kind}", _age_text(settings.retention, kind)) for kind in ENDS)
    if settings.retention.keep_payload is not UNSET:
        yield "keep_payload", ", ".join(settings.retention.keep_payload)
    yield "log_level", settings.log_level
    yield "log_age", format_duration(settings.log_age)
    yield "log_bytes", str(settings.log_bytes)
    yield "log_results", str(settings.log_results)
    yield "request_key_age", format_duration(settings.request_key_age)
    yield "fail_handler", "yes" if settings.fail_handler else "no"


def changed_settings(settings: Settings) -> str:
    """Return the settings that differ from the defaults, as "max_active 5, retention failed 30d"."""
    defaults = dict(setting_rows(Settings()))
    changed = ((name, text) for name, text in setting_rows(settings) if text != defaults.get(name))
    return ", ".join("paused" if name == "paused" else f"{name} {text}" for name, text in changed)


def _age_text(retention: OutcomeRetention, kind: str) -> str:
    age = getattr(retention, kind)
    if age is UNSET:
        age = getattr(DEFAULT_RETENTION, kind)
    return FOR_EVER if age is None else format_duration(age)
