"""The verb `get`. In lockstep, each comparison of slots calls it (lockstep.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dibs.model.job import Slot
from dibs_conformance.oracle.matching import match_slot
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.steps import RecordedOutcome, RecordedSlot, digest
from dibs_conformance.verbs.actions import ClientCall
from dibs_conformance.verbs.verb import CallEncoding, CallPart, StepFields, Verb, by_ids, step_of_each_id


def split(call: ClientCall) -> Iterator[CallPart]:
    for id, slot in zip(call.args["ids"], call.answer, strict=True):
        yield CallPart(call, "get", id, slot, apply)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue, id = part.call.queue, part.request
    match_slot(world.numbering, (queue, id), world.oracle.get(queue, id), part.answer, now)


def recorded_reply(requested: StepFields, answer: Sequence[Slot]) -> StepFields:
    return [
        {**one, "status": "read", "read": recorded_slot(slot)}
        for one, slot in zip(requested, answer, strict=True)
    ]


def recorded_slot(slot: Slot) -> RecordedSlot:
    current, successor, outcome = slot.current, slot.successor, slot.outcome
    ended = None
    if outcome is not None:
        ended = RecordedOutcome(
            outcome.kind, outcome.fence, outcome.first, outcome.revision, digest(outcome.result)
        )
    return RecordedSlot(
        current=(current.first, current.revision) if current else None,
        fence=current.run.fence if current and current.run else 0,
        successor=(successor.first, successor.revision) if successor else None,
        outcome=ended,
        dropped=slot.dropped,
    )


VERB = Verb(
    name="get",
    section="1, Queues, ids and their parts",
    weight=2,
    arguments=by_ids,
    split=split,
    apply=apply,
    reads=True,
    encoding=CallEncoding(step_of_each_id("get"), recorded_reply),
)
