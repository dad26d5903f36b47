"""A story for people: who called what, a column for each client, and then what happened to each id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf

from dibs_conformance.concurrent.apply import ANY
from dibs_conformance.concurrent.calls import Call, Round
from dibs_conformance.concurrent.linearize import touched
from dibs_conformance.report.story import brief


def timeline(rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the calls as lines, and then for each id what was called on it."""
    calls = [call for one in rounds for call in one.calls]
    names = sorted({call.client for call in calls})
    lines = [line for one in rounds for line in of_round(one, names)]
    return (*lines, *by_id(calls))


def of_round(one: Round, names: Sequence[str]) -> Iterator[str]:
    """A line where each call begins and one where it returned, in the column of its client."""
    moments: list[tuple[float, int, Call]] = []
    for call in one.calls:
        moments += [(call.invoked, 0, call), (call.returned, 1, call)]
    for _, ends, call in sorted(moments, key=lambda moment: moment[:2]):
        indent = "    " * names.index(call.client)
        yield f"{indent}{call.client} {answer(call) if ends else said(call)}"
    yield "-- all at rest"


def said(call: Call) -> str:
    args = ", ".join(f"{name}={brief(value)}" for name, value in call.args.items())
    return f"{call.verb}({args}) at {call.now}"


def answer(call: Call) -> str:
    if call.fate == "answered":
        return f"{call.verb} -> {brief(call.answer)}"
    return (
        f"{call.verb} never returned" if isinf(call.returned) else f"{call.verb} {call.fate}: {call.answer}"
    )


def by_id(calls: Sequence[Call]) -> Iterator[str]:
    """What was called on each id, in a line each."""
    ids = sorted({id for call in calls for id in touched(call)} - {ANY})
    for id in ids:
        mine = [f"{call.client} {call.verb}" for call in calls if id in touched(call)]
        yield f"id {brief(id)}: {' · '.join(mine)}"
