"""The verb `import_`. Its lockstep test copies a whole queue (sequential/scripts.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dibs.model.job import Job, JobData, Outcome, Slot
from dibs.model.requests import Release
from dibs.model.results import ExportRecord
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import return_to_waiting
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.numbering import Mismatch, NumberKind
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.steps import digest
from dibs_conformance.verbs.actions import START, ClientAction, ClientState
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    Fields,
    StepFields,
    Verb,
    read_races,
    read_scenes,
    with_status,
)

#: The seq and the revision of an imported job. A storage draws larger ones.
IMPORTED_NUMBER = 7


def build_arguments(action: ClientAction, _: str, __: ClientState) -> dict[str, Any]:
    ids = dict.fromkeys(action.ids)
    return {"records": [ExportRecord(id=id, slot=imported_slot(id, action)) for id in ids]}


def imported_slot(id: str, action: ClientAction) -> Slot:
    """Return a waiting job, or with `flag` an outcome that is kept for ever."""
    number = IMPORTED_NUMBER + action.serial
    if action.flag:
        outcome = Outcome(
            kind="completed", fence=0, first=number, revision=number, ended_at=START, expires_at=None
        )
        return Slot(outcome=outcome)
    job = Job(
        id=id,
        data=JobData(payload=b"imported %d" % action.serial),
        run_at=START,
        enqueued_at=START,
        seq=number,
        first=number,
        revision=number,
    )
    return Slot(current=job)


def step(oracle: Oracle, queue: str, id: str, record: IdRecord, now: int) -> None:
    """Store the record of an imported id, without output. Release an active job that is not handed off."""
    target = oracle.queue(queue)
    target.update_ring()
    record.output = record.outcome_output = []
    target.ids[id] = record
    run = record.current.run if record.current else None
    if run is not None and run.lease is not None:
        return_to_waiting(target, record, Release(), now)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    """Import one record of an id that waits, or of an id with an outcome only."""
    queue, id, slot = part.call.queue, part.request.id, part.request.slot
    known = world.oracle.queue(queue).record(id)
    exists = known.current is not None or known.live_outcome(now) is not None
    if part.answered and part.answer != ("exists" if exists else "imported"):
        state = "exists" if exists else "is free"
        raise Mismatch(f"import_ answered {part.answer!r} for {id!r}, which {state}")
    if not exists:
        add_numbers(world, (queue, id), slot)
        step(world.oracle, queue, id, IdRecord(current=slot.current, outcome=slot.outcome), now)


def add_numbers(world: OracleWorld, scope: tuple[str, str], slot: Slot) -> None:
    """Map the numbers of an imported slot to themselves. They are below all that the oracle draws."""
    parts = [part for part in (slot.current, slot.outcome) if part is not None]
    numbers: list[tuple[NumberKind, int]] = [("revision", part.revision) for part in parts]
    numbers += [("seq", part.seq) for part in parts if not isinstance(part, Outcome)]
    for kind, number in numbers:
        if world.numbering.actual(kind, scope, number) is None:
            world.numbering.add_imported(kind, scope, number, number, 0)


def recorded_request(queue: str, records: Sequence[ExportRecord], **_: Any) -> StepFields:
    return [record_fields(queue, record) for record in records]


def record_fields(queue: str, record: ExportRecord) -> Fields:
    fields: Fields = {"op": "import", "queue": queue, "id": record.id}
    if (job := record.slot.current) is not None:
        fields |= {"first": job.first, "revision": job.revision, "payload": digest(job.data.payload)}
    return fields


VERB = Verb(
    name="import_",
    section="3, Queues as a whole",
    weight=2,
    arguments=build_arguments,
    batch="records",
    apply=apply,
    races=read_races("""
        import_ beside enqueue (4.1): leases / import_ / enqueue
        import_ beside import_ (3, Queues as a whole): leases / import_
    """),
    scenes=read_scenes("import_: leases / import_ a b"),
    encoding=CallEncoding(recorded_request, with_status),
)
