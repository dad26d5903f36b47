"""The verb `retry_failed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis.stateful import rule

from dibs.model.job import Job, JobData, Origin
from dibs.model.results import RetryFailedStatus
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase
from dibs_conformance.oracle import Oracle
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
    return {**by_ids(action, queue, state), "delay": action.delay}


def step(oracle: Oracle, queue: str, ids: Sequence[str], now: int, *, delay: int) -> list[RetryFailedStatus]:
    return [retry_failed(oracle.queue(queue), id, now, delay) for id in ids]


def retry_failed(queue: OracleQueue, id: str, now: int, delay: int) -> RetryFailedStatus:
    """Enqueue a failed job again, with the data that its outcome kept, due after a delay."""
    record = queue.record(id)
    outcome = record.live_outcome(now)
    if record.current is not None:
        return "live"
    if outcome is None:
        return "not_found"
    if outcome.kind != "failed":
        return outcome.kind
    if outcome.data is None:
        return "not_kept"
    record.forget_old_drops(now)
    revived = revived_job(queue, id, outcome.origin, outcome.data, now, delay)
    record.current, record.outcome = revived, None
    record.output, record.outcome_output = record.outcome_output, []
    queue.log_event("queued", id, now, record.current)
    return "queued"


def revived_job(
    queue: OracleQueue, id: str, origin: Origin | None, data: JobData, now: int, delay: int
) -> Job:
    """Return the job of a failed outcome: due later, with counts of 0, new numbers and its stored data."""
    seq, revision = queue.numbers.draw(), queue.numbers.draw()
    return Job(
        id=id,
        data=data,
        run_at=now + delay,
        enqueued_at=now,
        seq=seq,
        first=revision,
        revision=revision,
        origin=origin,
    )


class RetryFailedRules(MachineBase):
    @rule(queue=some.queues, ids=some.some_ids, delay=some.offsets)
    def retry_failed(self, queue: str, ids: list[str], *, delay: int) -> None:
        self.lockstep.retry_failed(queue, ids, delay=delay)


VERB = Verb(
    name="retry_failed",
    section="3, amend, report, retry_failed, forget",
    weight=2,
    arguments=build_arguments,
    batch="ids",
    apply=apply_to_id(step),
    races=read_races("retry_failed beside enqueue: failed"),
    scenes=read_scenes("retry_failed: failed / retry_failed"),
    encoding=CallEncoding(step_of_each_id("retry_failed"), with_status),
)
