"""The verb `reap`, which returns the jobs of expired leases to the queue."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis.stateful import rule

from dibs.model.job import Slot
from dibs.model.requests import Release, RetryLater
from dibs.model.results import ReapedJob
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import return_to_waiting
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.verbs.drop import check_choice
from dibs_conformance.verbs.verb import ANY_ID, CallEncoding, CallPart, StepFields, Verb, read_scenes


def step(oracle: Oracle, queue_name: str, limit: int, chosen: Sequence[str], now: int) -> list[ReapedJob]:
    """Return up to `limit` jobs under expired leases to the queue.

    `chosen` are the jobs that the storage took, in its order. Raises Mismatch for a choice that the contract
    does not allow.
    """
    queue = oracle.queue(queue_name)
    reaped = check_choice("reap", expired_ids(queue, now), limit, chosen)
    return [reap_one(queue, id, now) for id in reaped]


def expired_ids(queue: OracleQueue, now: int) -> list[str]:
    """Return the ids that a reap without a limit would return to the queue."""
    return [job.id for job, run in queue.held() if queue.expired(run, now)]


def reap_one(queue: OracleQueue, id: str, now: int) -> ReapedJob:
    record = queue.record(id)
    assert record.current is not None  # noqa: S101 - a held job is current
    run = record.current.run
    assert run is not None  # noqa: S101
    assert run.lease is not None  # noqa: S101
    dropped = queue.leases[run.lease].dropped
    action = Release() if dropped else RetryLater(cause="stall")
    if not return_to_waiting(queue, record, action, now):
        return ReapedJob(id, run.fence, "cancelled")
    return ReapedJob(id, run.fence, "released" if dropped else "stalled")


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue = world.oracle.queue(part.call.queue)
    due = expired_ids(queue, now)
    if not part.answered:
        step(world.oracle, queue.name, len(due), due, now)
        return
    for actual in part.answer:
        if actual.id not in due:
            raise Mismatch(f"reaped {actual.id!r}, whose lease had not expired")
        due.remove(actual.id)
        match(world.numbering, (queue.name, actual.id), reap_one(queue, actual.id, now), actual)
    passed = [id for id in due if not part.may_skip(id)]
    if passed:
        raise Mismatch(f"reap skipped {passed}")


class ReapCalls(LockstepCore):
    """`reap`, called in lockstep."""

    def reap(self, queue: str, limit: int) -> None:
        args = {"limit": limit}
        answers = self.call("reap", {"queue": queue, **args}, self.storage.reap(queue, limit, now=self.now))
        slots = self.slots(queue)
        order = sorted(answers, key=lambda one: seq_of(slots.get(one.id)))
        expected = step(self.oracle, queue, limit, [one.id for one in order], self.now)
        for wanted, answer in zip(expected, order, strict=True):
            self.compare(queue, wanted.id, wanted, answer)
        self.after_write(queue)


def seq_of(slot: Slot | None) -> int:
    """Return the seq of the current job, or 0.

    A reap gives growing seqs to its jobs, so the seqs show the order in which the storage took the jobs.
    """
    return slot.current.seq if slot is not None and slot.current is not None else 0


class ReapRules(MachineBase):
    @rule(queue=some.every_queue, limit=some.limits)
    def reap(self, queue: str, limit: int) -> None:
        self.lockstep.reap(queue, limit)


def recorded_reply(requested: StepFields, answer: Sequence[ReapedJob]) -> StepFields:
    [reap] = requested
    reaped = [{**reap, "id": one.id, "fence": one.fence, "status": one.kind} for one in answer]
    return reaped or [{**reap, "status": "nothing"}]


VERB = Verb(
    name="reap",
    section="3, Leases",
    weight=4,
    arguments=lambda _, __, ___: {"limit": 100},
    apply=apply,
    # It may hold a job of an expired lease that has ended meanwhile, which its answer does not name.
    touches=lambda _: iter((ANY_ID,)),
    scenes=read_scenes("reap: runs under a short lease; enqueue / reap late"),
    encoding=CallEncoding(lambda queue, *_, **__: [{"op": "reap", "queue": queue}], recorded_reply),
)
