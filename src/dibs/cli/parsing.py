"""Parsing of argument values: JSON, NAME=JSON pairs, delays and times. Each function raises UsageError."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from dibs.cli.errors import UsageError
from dibs.client.options.arguments import duration_ms, epoch_ms


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
