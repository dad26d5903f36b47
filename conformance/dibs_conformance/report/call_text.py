"""Calls as lines of text, for the report of a failure.

One call looks like `claim(queue='q', lease='...', limit=10) at 1767225600000 -> ClaimResult(...)`.
In the timeline of several clients, the times of the call and of its answer stand before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

from attrs import frozen
from msgspec import UNSET, Struct

LONGEST_BYTES = 24
READING_VERBS = frozenset({"counts", "queues", "list", "split", "events", "export"})


class CallRecorder:
    """The calls of the current example, in order. It formats them as text only when `lines` is called."""

    def __init__(self) -> None:
        #: Number of calls of each verb, over all examples.
        self.counts: Counter[str] = Counter()
        self._calls: list[tuple[str, int, Mapping[str, Any], Any]] = []

    def begin(self) -> None:
        """Forget the calls of the previous example. Their numbers, `counts`, are kept."""
        self._calls = []

    def add(self, verb: str, now: int, args: Mapping[str, Any], answer: Any = UNSET) -> None:
        """Add a call. First remove the previous call if it only read: it did not lead to a failure."""
        if self._calls and self._calls[-1][0] in READING_VERBS:
            self._calls.pop()
        self.counts[verb] += 1
        self._calls.append((verb, now, args, answer))

    @property
    def newest(self) -> str:
        """The verb of the newest call, or "" before the first call."""
        return self._calls[-1][0] if self._calls else ""

    def lines(self) -> list[str]:
        """Return one line of text for each call."""
        return [format_call(*call) for call in self._calls]


def format_call(verb: str, now: int, args: Mapping[str, Any], answer: Any) -> str:
    """Return one call as a line of text. An `answer` of UNSET is left out."""
    shown = ", ".join(f"{name}={format_value(value)}" for name, value in args.items())
    return f"{verb}({shown}) at {now}" + ("" if answer is UNSET else f" -> {format_value(answer)}")


@frozen
class TimelineEntry:
    """One call in a timeline, with the times at which it was sent and answered, by one clock."""

    client: str
    began: float
    #: Infinite without an answer.
    ended: float
    text: str
    #: True for a call that contradicts another one.
    marked: bool = False


def timeline_lines(entries: Iterable[TimelineEntry]) -> list[str]:
    """Return one line for each call, in the order they were sent.

    Times count from the first call. The line of a marked call starts with ">".
    """
    ordered = sorted(entries, key=lambda entry: entry.began)
    zero = min((entry.began for entry in ordered), default=0)
    width = max((len(entry.client) for entry in ordered), default=0)
    return [
        f"{'>' if entry.marked else ' '} {entry.began - zero:g}..{answer_time(entry, zero):<12} "
        f"{entry.client:<{width}}  {entry.text}"
        for entry in ordered
    ]


def answer_time(entry: TimelineEntry, zero: float) -> str:
    return "?" if entry.ended == inf else f"{entry.ended - zero:g}"


def format_value(value: Any) -> str:
    """Return a short text for a value: long strings are cut, and fields with their default are left out."""
    if isinstance(value, Struct):
        return format_struct(value)
    if isinstance(value, bytes | str) and len(value) > LONGEST_BYTES:
        return f"{value[:LONGEST_BYTES]!r}... ({len(value)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{format_value(k)}: {format_value(v)}" for k, v in value.items()) + "}"
    return repr(value)


def format_struct(value: Struct) -> str:
    """Return a Struct as text, with only the fields that differ from their default."""
    kind = type(value)
    usual = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    shown = ((name, getattr(value, name)) for name in kind.__struct_fields__)
    parts = [f"{name}={format_value(v)}" for name, v in shown if name not in usual or v != usual[name]]
    return f"{kind.__name__}({', '.join(parts)})"
