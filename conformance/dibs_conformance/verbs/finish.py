"""The verb `finish`, which ends a run that was handed off."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import Cancelled, Complete, End, Fail, SettleAction
from dibs.model.results import FinishStatus
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase, has_runs
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import end_kind, end_run
from dibs_conformance.oracle.ids import IdRecord, OneOf
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.steps import FOLLOWED
from dibs_conformance.verbs.actions import ClientAction, ClientState
from dibs_conformance.verbs.settle import action_fields, build_settlements, follow_up_fields
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    check_answer,
    read_races,
    read_scenes,
)


def build_arguments(action: ClientAction, queue: str, state: ClientState) -> dict[str, Any]:
    id, revision = state.revision(action)
    [settlement] = build_settlements(action, queue, state)
    settle_as = settlement.action
    end = settle_as if isinstance(settle_as, Complete | Fail | Cancelled) else Cancelled()
    return {"id": id, "end": end, "revision": revision}


def step(oracle: Oracle, queue_name: str, id: str, end: End, revision: int, now: int) -> FinishStatus | OneOf:
    """End the handed-off run of the enqueue with this revision. It is found by id, without its fence."""
    queue = oracle.queue(queue_name)
    record = queue.record(id)
    outcome = record.outcome
    if outcome is None or not outcome.first <= revision <= outcome.revision:
        return finish_current(oracle, queue, record, end, revision, now)
    result: FinishStatus = "done" if end_kind(end) == outcome.kind else "lost"
    if record.live_outcome(now):
        return result
    return OneOf((result, finish_current(oracle, queue, record, end, revision, now)))


def finish_current(
    oracle: Oracle, queue: OracleQueue, record: IdRecord, end: End, revision: int, now: int
) -> FinishStatus:
    job = record.current
    if job is None:
        return "not_found"
    if not job.first <= revision <= job.revision:
        return "lost"
    if job.run is None or job.run.lease is not None:
        return "refused"
    end_run(oracle, queue, record, end, now)
    return "done"


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue, id = part.call.queue, part.request["id"]
    revision = world.numbering.expected("revision", (queue, id), part.request["revision"])
    check_answer(world, part, id, step(world.oracle, queue, id, part.request["end"], revision, now))


class FinishRules(MachineBase):
    @precondition(has_runs)
    @rule(pick=some.picks, data=st.data())
    def finish(self, pick: int, data: st.DataObject) -> None:
        known = self.issued.revisions
        queue, id, revision = known[-1 - pick % len(known)]
        end = data.draw(some.ends(self.lockstep.now, queue, cross_queue=self.session.cross_queue))
        if not queue.endswith(FAIL_SUFFIX):
            self.lockstep.finish(queue, id, end, revision)


def recorded_request(queue: str, id: str, end: SettleAction, revision: int, **_: Any) -> StepFields:
    fields = {"op": "finish", "queue": queue, "id": id, "revision": revision, **action_fields(end)}
    return [fields, *follow_up_fields(end)]


def recorded_reply(requested: StepFields, answer: str) -> StepFields:
    [finish, *follow_ups] = requested
    ended = [{**one, "status": FOLLOWED} for one in follow_ups]
    return [{**finish, "status": answer}, *(ended if answer == "done" else ())]


VERB = Verb(
    name="finish",
    section="3, finish",
    weight=2,
    arguments=build_arguments,
    apply=apply,
    races=read_races("finish beside cancel (3, finish): handed off / finish / cancel flag; enqueue; claim"),
    scenes=read_scenes("finish: handed off / finish"),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
