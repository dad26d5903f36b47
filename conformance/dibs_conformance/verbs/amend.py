"""The verb `amend`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.job import Job, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import JobPatch
from dibs.model.results import AmendStatus
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import resolve_time
from dibs_conformance.oracle.ids import Amendment, IdRecord, apply_amendment
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.steps import digest
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    check_answer,
    read_races,
    read_scenes,
    with_status,
)

PATCHES = (JobPatch(attributes={"b": b"2"}), JobPatch(priority=1, delay=5, lease=7))


def step(oracle: Oracle, queue_name: str, id: str, patch: JobPatch, now: int) -> AmendStatus:
    """Apply a patch to the job, its successor and its outcome. Apply all fields, or none."""
    queue = oracle.queue(queue_name)
    record = queue.record(id)
    record.forget_old_drops(now)
    job = record.current
    if job is None:
        return amend_outcome(queue, id, patch, now)
    movable = (patch.payload, patch.run_at, patch.delay, patch.priority, patch.lease)
    if job.run is not None and any(part is not UNSET for part in movable):
        return "active"
    entry = Amendment(attributes=patch.attributes, retention=patch.retention)
    record.current = change_waiting(apply_amendment(job, entry), patch, now)
    if record.during_run:
        record.during_run.append(entry)
    if patch.retention is not UNSET and record.live_outcome(now):
        extend_outcome(record, patch.retention, now)
    queue.log_event("amended", id, now, record.current)
    return "amended"


def change_waiting(job: Job, patch: JobPatch, now: int) -> Job:
    """Apply the fields of a patch that only a waiting job accepts."""
    if patch.payload is not UNSET:
        job = replace(job, data=replace(job.data, payload=patch.payload))
    if patch.priority is not UNSET:
        job = replace(job, data=replace(job.data, priority=patch.priority))
    if patch.lease is not UNSET:
        overrides = replace(job.data.overrides or Overrides(), lease=patch.lease)
        job = replace(job, data=replace(job.data, overrides=overrides))
    if patch.run_at is not UNSET or patch.delay is not UNSET:
        run_at = None if patch.run_at is UNSET else patch.run_at
        delay = None if patch.delay is UNSET else patch.delay
        job = replace(job, run_at=resolve_time(run_at, delay, now))
    return job


def amend_outcome(queue: OracleQueue, id: str, patch: JobPatch, now: int) -> AmendStatus:
    record = queue.record(id)
    allowed = JobPatch(attributes=patch.attributes, retention=patch.retention)
    if patch == JobPatch() or patch != allowed or record.live_outcome(now) is None:
        return "not_found"
    if patch.attributes is not UNSET:
        merge_into_outcome(record, patch.attributes)
    if patch.retention is not UNSET:
        extend_outcome(record, patch.retention, now)
    queue.log_event("amended", id, now)
    return "amended"


def merge_into_outcome(record: IdRecord, attributes: Mapping[str, bytes]) -> None:
    """Merge attributes into those that the outcome keeps, in its data or without data."""
    outcome = record.outcome
    assert outcome is not None  # noqa: S101 - live_outcome returned it
    if outcome.data is None:
        record.outcome = replace(outcome, attributes={**outcome.attributes, **attributes})
        return
    merged = {**outcome.data.attributes, **attributes}
    record.outcome = replace(outcome, data=replace(outcome.data, attributes=merged))


def extend_outcome(record: IdRecord, retention: OutcomeRetention, now: int) -> None:
    """Set a new expiry, counted from `now`, if the retention sets a time for this kind of outcome."""
    assert record.outcome is not None  # noqa: S101 - live_outcome returned it
    age = getattr(retention, record.outcome.kind)
    if age is not UNSET:
        record.outcome = replace(record.outcome, expires_at=None if age is None else now + age)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    id, patch = part.request["id"], part.request["patch"]
    check_answer(world, part, id, step(world.oracle, part.call.queue, id, patch, now))


class AmendRules(MachineBase):
    @rule(queue=some.queues, id=some.ids, data=st.data())
    def amend(self, queue: str, id: str, data: st.DataObject) -> None:
        self.lockstep.amend(queue, id, data.draw(some.patches(self.lockstep.now)))


def recorded_request(queue: str, id: str, patch: JobPatch, **_: Any) -> StepFields:
    payload = "" if patch.payload is UNSET else digest(patch.payload)
    return [{"op": "amend", "queue": queue, "id": id, "payload": payload}]


VERB = Verb(
    name="amend",
    section="3, amend, report, retry_failed, forget",
    weight=2,
    arguments=lambda action, _, __: {"id": action.ids[0], "patch": PATCHES[action.flag]},
    apply=apply,
    races=read_races("amend beside claim: leases; enqueue"),
    scenes=read_scenes("amend: runs with a successor / amend"),
    encoding=CallEncoding(recorded_request, lambda requested, answer: with_status(requested, [answer])),
)
