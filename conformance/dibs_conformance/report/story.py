"""The steps of an example as text a person can follow: what was called, and what was answered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import UNSET, Struct

LONGEST_BYTES = 24
READS = frozenset({"counts", "queues", "list", "split", "events", "export"})


class StoryRecorder:
    """The calls of the latest example, in order; text is made only when someone reads it."""

    def __init__(self) -> None:
        self._calls: list[tuple[str, int, Mapping[str, Any], Any]] = []

    def begin(self) -> None:
        self._calls = []

    def add(self, verb: str, now: int, args: Mapping[str, Any], answer: Any = UNSET) -> None:
        """Write a call down; one that only reads is left out again once another follows."""
        if self._calls and self._calls[-1][0] in READS:
            self._calls.pop()
        self._calls.append((verb, now, args, answer))

    def lines(self) -> list[str]:
        return [line(*call) for call in self._calls]


def line(verb: str, now: int, args: Mapping[str, Any], answer: Any) -> str:
    said = ", ".join(f"{name}={brief(value)}" for name, value in args.items())
    return f"{verb}({said}) at {now}" + ("" if answer is UNSET else f" -> {brief(answer)}")


def brief(value: Any) -> str:
    """Say a value without what is as usual."""
    if isinstance(value, Struct):
        return brief_struct(value)
    if isinstance(value, bytes | str) and len(value) > LONGEST_BYTES:
        return f"{value[:LONGEST_BYTES]!r}... ({len(value)})"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(brief(item) for item in value) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{brief(k)}: {brief(v)}" for k, v in value.items()) + "}"
    return repr(value)


def brief_struct(value: Struct) -> str:
    kind = type(value)
    usual = dict(zip(reversed(kind.__struct_fields__), reversed(kind.__struct_defaults__), strict=False))
    said = ((name, getattr(value, name)) for name in kind.__struct_fields__)
    parts = [f"{name}={brief(v)}" for name, v in said if name not in usual or v != usual[name]]
    return f"{kind.__name__}({', '.join(parts)})"
