"""The verb `forget`."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import rule

from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.queue import OracleQueue
from dibs_conformance.verbs.verb import (
    CallEncoding,
    StepFields,
    Verb,
    apply_to_id,
    by_ids,
    read_races,
    read_scenes,
    step_of_each_id,
    with_status,
)


def step(oracle: Oracle, queue: str, ids: Sequence[str], now: int) -> list[bool]:
    return [forget(oracle.queue(queue), id, now) for id in ids]


def forget(queue: OracleQueue, id: str, now: int) -> bool:
    """Remove everything of an id. Return whether it had a job or an unexpired outcome."""
    record = queue.record(id)
    had = record.current is not None or record.live_outcome(now) is not None
    queue.ids[id] = IdRecord()
    if had:
        queue.log_event("forgotten", id, now)
    return had


class ForgetRules(MachineBase):
    @rule(queue=some.queues, ids=st.lists(some.ids, min_size=1, max_size=1))
    def forget(self, queue: str, ids: list[str]) -> None:
        self.lockstep.forget(queue, ids)


def recorded_reply(requested: StepFields, answer: Sequence[bool]) -> StepFields:
    return with_status(requested, ["forgotten" if one else "not_found" for one in answer])


VERB = Verb(
    name="forget",
    section="3, amend, report, retry_failed, forget",
    weight=2,
    arguments=by_ids,
    batch="ids",
    apply=apply_to_id(step),
    races=read_races("forget beside claim: leases; enqueue"),
    scenes=read_scenes("forget: runs / forget"),
    encoding=CallEncoding(step_of_each_id("forget"), recorded_reply),
)
