"""The law of readers of a log: once a reader has received an offset, no event appears at or before it.

A call and its events may become visible at different moments, so the search for an order (linearize.py)
leaves readings of the log out. This module compares the events that each reader got with the log at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dibs_conformance.verbs.calls import ClientCall, Round

LAW = "nothing appears behind a reader"
SENTENCE = "Once a reader has received an offset, no event ever appears at or before it."


def reads_of_log(rounds: Iterable[Round]) -> list[ClientCall]:
    """Return the answered calls that read the log."""
    calls = (call for round_ in rounds for call in round_.calls)
    return [call for call in calls if call.operation == "events" and call.completion == "answered"]


def late_event(rounds: Sequence[Round]) -> str:
    """Return a sentence about an event that a reader missed, or "" if no reader missed one.

    The log of the last snapshot must have, between the offset that a reader started from and the offset that
    it got, exactly the events that it got.
    """
    last = rounds[-1].snapshot
    if last is None or last.events is None:
        return ""
    log = dict(zip(last.offsets, last.events, strict=True))
    for call in reads_of_log(rounds):
        after, until = call.args["after"], call.answer.offset
        got = dict(call.answer.events)
        expected = {at: event for at, event in log.items() if (after is None or at > after) and at <= until}
        missed = [at for at in expected if at not in got]
        if missed:
            event = log[missed[0]]
            return (
                f"{call.client} read the log up to the offset {until}; then the event {event.kind} of "
                f"{event.id!r} appeared at the offset {missed[0]}, which is not behind it"
            )
        if got != expected:
            return f"{call.client} read events up to the offset {until} that the log no longer has"
    return ""
