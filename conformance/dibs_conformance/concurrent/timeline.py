"""The report of a failed example: a timeline with one column per client, and the calls on each id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from dibs_conformance.concurrent.linearize import touched_ids
from dibs_conformance.report.call_text import format_value
from dibs_conformance.verbs.calls import ClientCall, Round
from dibs_conformance.verbs.verb import ANY_ID


def timeline(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the calls as lines, and then one line per id."""
    calls = [call for round_ in rounds for call in round_.calls]
    names = sorted({call.client for call in calls})
    lines = [line for round_ in rounds for line in round_lines(round_, names)]
    return (*lines, *lines_by_id(calls))


def round_lines(round_: Round, names: Sequence[str]) -> Iterator[str]:
    """Yield a line for each invocation and each return, indented by client."""
    events: list[tuple[float, int, ClientCall]] = []
    for call in round_.calls:
        events += [(call.invoked, 0, call), (call.returned, 1, call)]
    for _, is_return, call in sorted(events, key=lambda event: event[:2]):
        indent = "    " * names.index(call.client)
        yield f"{indent}{call.client} {result_text(call) if is_return else call_text(call)}"
    yield "-- all clients idle"


def call_text(call: ClientCall) -> str:
    args = ", ".join(f"{name}={format_value(value)}" for name, value in call.args.items())
    return f"{call.operation}({args}) at {call.now}"


def result_text(call: ClientCall) -> str:
    if call.completion == "answered":
        return f"{call.operation} -> {format_value(call.answer)}"
    return (
        f"{call.operation} never returned"
        if isinf(call.returned)
        else f"{call.operation} {call.completion}: {call.answer}"
    )


def lines_by_id(calls: Sequence[ClientCall]) -> Iterator[str]:
    """Yield one line per id with the calls that touch it."""
    ids = sorted({id for call in calls for id in touched_ids(call)} - {ANY_ID})
    for id in ids:
        touching = [f"{call.client} {call.operation}" for call in calls if id in touched_ids(call)]
        yield f"id {format_value(id)}: {' · '.join(touching)}"
