"""The verb `enqueue`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from random import Random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule
from msgspec.structs import replace

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, OnConflict, Reject, Update
from dibs.model.results import EnqueueResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase
from dibs_conformance.oracle import Oracle, changes
from dibs_conformance.oracle.queue import OracleWorld
from dibs_conformance.steps import digest
from dibs_conformance.verbs.actions import (
    ClientAction,
    ClientCall,
    ClientState,
)
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    Fields,
    StepFields,
    Verb,
    check_answer,
    read_races,
    read_scenes,
)

#: `ClientAction.conflict` is an index into these. UPDATE_ONLY is that whose job has no data.
CONFLICT_OPTIONS: tuple[OnConflict, ...] = (
    *(Update(), Update(), Update(), Reject(), Reject(failed=True)),
    *(Update(data=False, run_at="earlier"), Update(run_at="later", reset_counts=False)),
    Update(create=False, run_at="later"),
    Update(supersede=True),
    Update(create=False, run_at="wake"),
)
UPDATE_ONLY, SIGNAL = 7, 9
#: `ClientAction.data` is an index into these, or `LARGE_DATA` for a payload of `LARGE_BYTES` bytes.
JOB_DATA = (
    JobData(payload=b"1"),
    JobData(payload=b"2", priority=1),
    JobData(payload=b"3", attributes={"a": b"1"}),
    JobData(payload=b"4", key="k"),
    JobData(payload=b"5", key="m"),
)
LARGE_DATA, LARGE_BYTES = -1, 1_000_000
#: The number of request keys among the actions with a `serial`.
KEYS = 50


def build_requests(action: ClientAction) -> list[EnqueueRequest]:
    data = large_data() if action.data == LARGE_DATA else JOB_DATA[action.data]
    key = "k" if action.flag and action.nth_newest else None
    if action.serial:
        data, key = replace(data, payload=b"%d" % action.serial), key and f"k{action.serial % KEYS}"
    if action.conflict in (UPDATE_ONLY, SIGNAL):
        attributes = {"s": b"%d" % action.serial} if action.conflict == SIGNAL else {}
        data = JobData(attributes=attributes)
    return [
        EnqueueRequest(
            job=NewJob(id=id, data=data, delay=None if action.conflict == SIGNAL else action.delay or None),
            on_conflict=CONFLICT_OPTIONS[action.conflict],
            request_key=key,
        )
        for id in action.ids
    ]


@cache
def large_data() -> JobData:
    """Return a payload of random bytes, which a storage cannot compress."""
    return JobData(payload=Random(0).randbytes(LARGE_BYTES))


def step(oracle: Oracle, queue: str, requests: Sequence[EnqueueRequest], now: int) -> list[EnqueueResult]:
    return [changes.enqueue(oracle.queue(queue), request, now) for request in requests]


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    request = part.request
    [expected] = step(world.oracle, part.call.queue, [request], now)
    owner = request.job.id
    if request.request_key is not None:
        key = (part.call.queue, request.request_key)
        if not expected.repeated:
            world.key_owners[key] = owner
        owner = world.key_owners.get(key, owner)
    check_answer(world, part, owner, expected)


def remember(state: ClientState, call: ClientCall) -> None:
    """Add the revisions.

    Skip repeated enqueues. Their answer has the revision of the first enqueue with that request_key, often
    for another id. If the range of this id covers that revision by chance, the linearizability check cannot
    decide whether the answer is right.
    """
    ids = (request.job.id for request in call.args["requests"])
    answers = zip(ids, call.answer, strict=True)
    state.revisions += [(id, answer.revision) for id, answer in answers if not answer.repeated]


class EnqueueRules(MachineBase):
    @rule(queue=some.queues, data=st.data())
    def enqueue(self, queue: str, data: st.DataObject) -> None:
        requests = data.draw(some.requests(self.lockstep.now))
        answers = self.lockstep.enqueue(queue, requests)
        accepted = [(r.job.id, a.revision) for r, a in zip(requests, answers, strict=True) if not a.repeated]
        self.issued.revisions += [(queue, id, revision) for id, revision in accepted]


def recorded_request(queue: str, requests: Sequence[EnqueueRequest], **_: Any) -> StepFields:
    return [request_fields(queue, request) for request in requests]


def request_fields(queue: str, request: EnqueueRequest) -> Fields:
    """Return the fields of the step of one request; also of a follow-up."""
    on_conflict = request.on_conflict
    return {
        "op": "enqueue",
        "queue": queue,
        "id": request.job.id,
        "key": request.request_key or "",
        "payload": digest(request.job.data.payload),
        "replaces": not isinstance(on_conflict, Update) or on_conflict.replaces,
        "resets": not isinstance(on_conflict, Update) or on_conflict.resets,
        "creates": not isinstance(on_conflict, Update) or on_conflict.create,
        "supersedes": isinstance(on_conflict, Update) and on_conflict.supersede,
    }


def recorded_reply(requested: StepFields, answer: Sequence[EnqueueResult]) -> StepFields:
    names = ("status", "first", "revision", "repeated")
    return [
        {**one, **{name: getattr(result, name) for name in names}}
        for one, result in zip(requested, answer, strict=True)
    ]


VERB = Verb(
    name="enqueue",
    section="3, enqueue; 3, A bound on the waiting jobs; 3, The fold law; 1, When an enqueue is done; 4.6",
    weight=10,
    arguments=lambda action, _, __: {"requests": build_requests(action)},
    batch="requests",
    apply=apply,
    remember=remember,
    races=read_races("""
        enqueue beside enqueue
        enqueue beside settle (3, The fold law)
        enqueue beside settle (3, The fold law): / enqueue conflict=7 / settle
        enqueue beside settle (3, enqueue): runs / enqueue conflict=8 / settle retry later
        enqueue beside settle (3, enqueue): runs / enqueue conflict=8 / settle hand off
        enqueue beside cancel (3, enqueue): runs / enqueue conflict=8 / cancel flag
        enqueue beside reap (3, enqueue): runs under a short lease / enqueue conflict=8 / reap late
        enqueue beside finish (3, enqueue): handed off / enqueue conflict=8 / finish
        enqueue beside settle (3, enqueue): runs / enqueue conflict=9 / settle
        enqueue beside enqueue (3, enqueue): parked / enqueue conflict=9 / enqueue conflict=9
        enqueue beside enqueue (3, A bound on the waiting jobs): configure one waiting / enqueue / enqueue b
        enqueue beside claim (3, A bound on the waiting jobs): a full queue / enqueue b / claim
        enqueue beside cancel (3, A bound on the waiting jobs): a full queue / enqueue a b / cancel
        enqueue beside settle (3, A bound on the waiting jobs): runs; configure two wait / enqueue b / settle
        enqueue beside events (3, Events): leases; configure all events / enqueue / enqueue b; events
    """),
    scenes=read_scenes("""
        enqueue: leases / enqueue a b nth_newest=1 flag
        update: leases; enqueue / enqueue data=1
        block: runs / enqueue a a data=1
        update only: runs / enqueue conflict=7
        signal: runs with a successor / enqueue conflict=9
        wake: parked / enqueue conflict=9
        supersede: runs / enqueue a a conflict=8
        supersede a handed-off run: handed off / enqueue conflict=8
        full: a full queue / enqueue b a nth_newest=1 flag
    """),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
