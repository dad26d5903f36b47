"""What was typed, as values: JSON, NAME=JSON pairs, times."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from dibs.cli.refusals import WrongWords
from dibs.client.options.durations import duration_ms, epoch_ms


def json_of(text: str, name: str) -> Any:
    """Return the value of a JSON text; `-` reads it from stdin."""
    raw = sys.stdin.buffer.read() if text == "-" else text.encode(errors="surrogateescape")
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        hint = f"""; text needs its own quotes, as in '"{text}"'""" if text.isidentifier() else ""
        reason = str(error).removeprefix("JSON is malformed: ")
        raise WrongWords(f"{name} is no JSON: {reason}{hint}") from None


def pairs_of(texts: Sequence[str], name: str) -> dict[str, Any]:
    """Return NAME=JSON pairs as a mapping."""
    pairs: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise WrongWords(f"{name} {text!r}: write it as NAME=JSON, as in tries=3")
        pairs[key] = json_of(value, f"{name} {key}")
    return pairs


def delay_of(seconds: float | None) -> int | None:
    """Return a delay in ms."""
    return None if seconds is None else duration_ms("--delay", seconds)


def time_of(text: str, name: str) -> int:
    """Return an ISO 8601 time with a zone as ms since the epoch."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise WrongWords(f"{name} {text!r}: write it as 2030-01-31T09:00:00+01:00") from None
    return epoch_ms(name, moment)
