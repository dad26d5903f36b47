"""The timeline of a failed example: the calls of each round, and the calls on each id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from dibs_conformance.concurrent.linearize import touched_ids
from dibs_conformance.report.call_text import TimelineEntry, format_value, timeline_lines
from dibs_conformance.verbs.calls import ClientCall, Round
from dibs_conformance.verbs.verb import ANY_ID


def timeline(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the calls as lines, and then one line per id. Times are positions in the order of events."""
    calls = [call for round_ in rounds for call in round_.calls]
    times = sorted({time for call in calls for time in (call.invoked, call.returned)} - {inf})
    position = {inf: inf, **{time: at for at, time in enumerate(times)}}
    lines: list[str] = []
    for round_ in rounds:
        lines += timeline_lines(
            TimelineEntry(
                call.client,
                position[call.invoked],
                position[call.returned],
                f"{call_text(call)} -> {result_text(call)}",
            )
            for call in round_.calls
        )
        lines.append("-- all clients idle")
    return (*lines, *lines_by_id(calls))


def call_text(call: ClientCall) -> str:
    args = ", ".join(f"{name}={format_value(value)}" for name, value in call.args.items())
    return f"{call.operation}({args}) at {call.now}"


def result_text(call: ClientCall) -> str:
    if call.completion == "answered":
        return format_value(call.answer)
    return "no answer" if call.returned == inf else f"{call.completion}: {call.answer}"


def lines_by_id(calls: Sequence[ClientCall]) -> Iterator[str]:
    """Yield one line per id with the calls that touch it."""
    ids = sorted({id for call in calls for id in touched_ids(call)} - {ANY_ID})
    for id in ids:
        touching = [f"{call.client} {call.operation}" for call in calls if id in touched_ids(call)]
        yield f"id {format_value(id)}: {' · '.join(touching)}"
