"""The verb `cancel`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from dibs.model.results import CancelStatus
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import ask_to_end, end_current
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.queue import OracleQueue
from dibs_conformance.verbs.actions import ClientAction, ClientState
from dibs_conformance.verbs.verb import (
    CallEncoding,
    Verb,
    apply_to_id,
    by_ids,
    read_races,
    read_scenes,
    step_of_each_id,
    with_status,
)


def build_arguments(action: ClientAction, queue: str, state: ClientState) -> dict[str, Any]:
    return {**by_ids(action, queue, state), "running": action.flag}


def step(oracle: Oracle, queue: str, ids: Sequence[str], now: int, *, running: bool) -> list[CancelStatus]:
    return [cancel(oracle.queue(queue), id, now, running=running) for id in ids]


def cancel(queue: OracleQueue, id: str, now: int, *, running: bool) -> CancelStatus:
    """Cancel a waiting job or drop a successor; with `running`, also request the cancellation of the run."""
    record = queue.record(id)
    record.forget_old_drops(now)
    job, outcome = record.current, record.live_outcome(now)
    if job is None:
        return outcome.kind if outcome else "not_found"
    if job.run is None:
        end_current(queue, record, "cancelled", now)
        return "cancelled"
    dropped = drop_successor(queue, record, now)
    if not running:
        return "cancelled" if dropped else "active"
    return ask_to_end(queue, record, now)


def drop_successor(queue: OracleQueue, record: IdRecord, now: int) -> bool:
    blocked = record.successor()
    if blocked is None:
        return False
    record.drop_successor(now)
    queue.log_attempt_end("cancelled", replace(blocked, attempts=0), now)
    return True


class CancelRules(MachineBase):
    @rule(queue=some.queues, ids=some.some_ids, running=st.booleans())
    def cancel(self, queue: str, ids: list[str], *, running: bool) -> None:
        self.lockstep.cancel(queue, ids, running=running)


VERB = Verb(
    name="cancel",
    section="3, cancel",
    weight=4,
    arguments=build_arguments,
    batch="ids",
    apply=apply_to_id(step),
    races=read_races("""
        cancel beside settle
        cancel beside claim: leases; enqueue
    """),
    scenes=read_scenes("cancel: runs with a successor / cancel flag"),
    encoding=CallEncoding(step_of_each_id("cancel"), with_status),
)
