"""Compares a result of the storage with that of the oracle, field by field.

Seqs, revisions and fences may differ; NumberMap checks them. OneOf stands for several correct values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct

from dibs.model.events import LogEvent
from dibs.model.job import Job, Slot, Successor
from dibs_conformance.oracle.changes import NotLater
from dibs_conformance.oracle.ids import (
    Entry,
    IdRecord,
    OneOf,
    accepted_enqueues,
    replaces_data,
    replay,
    resets_counts,
)
from dibs_conformance.oracle.numbering import Mismatch, NumberKind, NumberMap, Scope
from dibs_conformance.report.call_text import format_value

#: The fields whose numbers the storage draws itself, with the kind of number.
NUMBERS: dict[str, NumberKind] = {"seq": "seq", "first": "revision", "revision": "revision", "fence": "fence"}

#: Fields that are not compared: `reason` is free text, `token` is opaque.
OPAQUE = frozenset({"reason", "token"})


def match(numbering: NumberMap, scope: Scope, expected: Any, actual: Any, path: str = "") -> None:
    """Raise Mismatch unless both values are equal. `scope` is the queue and id to which numbers belong.

    `path` names the value in the error, as in "current.run".
    """
    if isinstance(expected, OneOf):
        if not any(matches(numbering, scope, answer, actual) for answer in expected.answers):
            raise Mismatch(f"{path or 'the answer'} is {actual!r}; expected one of {expected.answers}")
    elif isinstance(expected, NotLater):
        if not expected.allows(actual):
            raise Mismatch(f"{path or 'the answer'} is {actual!r}; expected {expected}")
    elif isinstance(expected, Struct) and type(expected) is type(actual):
        match_fields(numbering, scope, expected, actual, path)
    elif isinstance(expected, tuple) and isinstance(actual, tuple) and len(expected) == len(actual):
        for index, pair in enumerate(zip(expected, actual, strict=True)):
            match(numbering, scope, *pair, f"{path}[{index}]")
    elif expected != actual:
        found, wanted = format_value(actual), format_value(expected)
        if found == wanted:  # format_value shortens both texts, and they differ only in the part left out.
            found, wanted = repr(actual), repr(expected)
        raise Mismatch(f"{path or 'the answer'} is {found}; expected {wanted}")


def matches(numbering: NumberMap, scope: Scope, expected: Any, actual: Any) -> bool:
    try:
        match(numbering, scope, expected, actual)
    except Mismatch:
        return False
    return True


def match_fields(numbering: NumberMap, scope: Scope, expected: Struct, actual: Any, path: str) -> None:
    # An origin names another id: its numbers belong to that id.
    if type(expected).__name__ == "Origin":
        scope = (expected.queue, expected.id)  # type: ignore[attr-defined]
    for name in expected.__struct_fields__:
        if name in OPAQUE:
            continue
        old, new = getattr(expected, name), getattr(actual, name)
        where = f"{path}.{name}" if path else name
        if name in NUMBERS:
            match_number(numbering, scope, old, new, where)
        elif old is not new:
            match(numbering, scope, old, new, where)


def match_number(numbering: NumberMap, scope: Scope, expected: int, actual: int, where: str) -> None:
    try:
        numbering.match_number(NUMBERS[where.rpartition(".")[2]], scope, expected, actual)
    except Mismatch as error:
        raise Mismatch(f"{where}: {error}") from None


def match_slot(numbering: NumberMap, scope: Scope, expected: IdRecord, actual: Slot, now: int) -> None:
    """Raise Mismatch unless a slot is equal to the oracle's record of the id."""
    match(numbering, scope, expected.current, actual.current, "current")
    match_successor(numbering, scope, expected, actual.successor)
    match(numbering, scope, expected.live_outcome(now), actual.outcome, "outcome")
    match_dropped(numbering, scope, expected, actual)


def match_successor(numbering: NumberMap, scope: Scope, expected: IdRecord, actual: Successor | None) -> None:
    """Compare the successor of the storage with a replay of the enqueues during the run.

    The storage merges each enqueue into its successor at once. The oracle replays the whole list.
    """
    blocked = expected.successor()
    if blocked is None or actual is None:
        if (blocked is None) != (actual is None):
            raise Mismatch(f"successor is {actual!r}; expected {blocked!r}")
        return
    for name in ("data", "run_at", "enqueued_at", "enqueues"):
        match(numbering, scope, getattr(blocked, name), getattr(actual, name), f"successor.{name}")
    creates = expected.heir() is not None
    if actual.creates != creates:
        raise Mismatch(f"successor.creates is {actual.creates}; expected {creates}")
    for name in ("seq", "first", "revision"):
        match_number(numbering, scope, getattr(blocked, name), getattr(actual, name), f"successor.{name}")
    match_returned_job(expected, actual)


def match_returned_job(expected: IdRecord, actual: Successor) -> None:
    """Raise Mismatch unless the successor would change a returned job in the same way as a replay.

    The bounds `lo` and `hi` are tried with the time of each enqueue, and with 1 ms before and after it.
    """
    assert expected.current is not None  # noqa: S101 - a successor needs a current job
    enqueued = accepted_enqueues(expected.during_run)
    fields = {
        "replaces": any(replaces_data(a.on_conflict) for a in enqueued),
        "resets": any(resets_counts(a.on_conflict) for a in enqueued),
    }
    for name, wanted in fields.items():
        if getattr(actual, name) != wanted:
            raise Mismatch(f"successor.{name} is {getattr(actual, name)}; expected {wanted}")
    clamp = make_clamp(actual)
    for time in {t + step for a in enqueued for t in (a.run_at,) for step in (-1, 0, 1)}:
        if clamp(time) != run_at_after_return(expected.current, expected.during_run, time):
            raise Mismatch(f"the bounds lo and hi of the successor move a retry at {time} to {clamp(time)}")


def make_clamp(successor: Successor) -> Callable[[int], int]:
    def clamp(time: int) -> int:
        low = time if successor.lo is None else max(time, successor.lo)
        return low if successor.hi is None else min(low, successor.hi)

    return clamp


def run_at_after_return(job: Job, during_run: list[Entry], time: int) -> int:
    """Return the run_at of a job that returns at `time`, by a replay of the entries."""
    return replay(
        Job(id=job.id, data=job.data, run_at=time, enqueued_at=0, seq=0, first=0, revision=0), during_run
    ).run_at


def match_dropped(numbering: NumberMap, scope: Scope, expected: IdRecord, actual: Slot) -> None:
    """Raise Mismatch if `dropped` lacks a revision that it must have, or has one that was not dropped."""
    for old, new in numbering.revisions(scope):
        reported = any(first <= new <= last for first, last in actual.dropped)
        must = any(first <= old <= last for first, last in expected.dropped)
        may = any(first <= old <= last for first, last in expected.ever_dropped)
        if reported < must or reported > may:
            raise Mismatch(f"dropped is {actual.dropped}: it is wrong for revision {new} of {scope[1]!r}")


def match_event(numbering: NumberMap, queue: str, expected: LogEvent, actual: LogEvent) -> None:
    """Raise Mismatch unless all fields of two events are equal."""
    match(numbering, (queue, expected.id), expected, actual, f"event {expected.kind}")
