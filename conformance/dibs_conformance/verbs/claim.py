"""The verb `claim`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis.stateful import rule
from msgspec.structs import replace

from dibs.model.job import Job
from dibs.model.results import ClaimResult
from dibs.storage.protocol import Storage
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import activate, full_keys, is_admitted, next_due
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.numbering import Mismatch, WrongTime
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.steps import digest
from dibs_conformance.verbs.actions import (
    ClientCall,
)
from dibs_conformance.verbs.verb import (
    ANY_ID,
    CallEncoding,
    CallPart,
    Fields,
    StepFields,
    Verb,
    read_races,
    read_scenes,
)

#: The fields that order jobs in a claim: the priority, the place of the key, the time, and the seq.
ClaimOrder = tuple[int, int, int, int, int]


def step(
    oracle: Oracle, queue_name: str, lease: str, limit: int, now: int, taken: Sequence[str] = ()
) -> ClaimResult:
    """Make admitted due jobs active: by priority, turn of the key, run_at and seq (contract 2).

    Parked jobs of the same time have the same seq, and may come in any order: here in that of `taken`, the
    ids that the storage took.
    """
    queue = oracle.queue(queue_name)
    holder = queue.lease(lease, now)
    if holder is None:
        return ClaimResult(now=now, lost=True)
    if queue.settings.paused:
        return ClaimResult(now=now)
    free = limit
    if queue.settings.max_active is not None:
        free = min(limit, max(0, queue.settings.max_active - len(queue.held())))
    due = [job for job in queue.jobs() if job.run is None and job.run_at <= now]
    jobs: list[Job] = []
    full = full_keys(queue)
    places = {id: place for place, id in enumerate(taken)}

    def order(job: Job) -> tuple[ClaimOrder, int]:
        picked = places.get(job.id, limit)
        return claim_order(queue, job, job.seq, picked), picked

    queue.update_ring()
    line = sorted(due, key=order, reverse=True)
    while line and len(jobs) < free:
        job = line.pop()
        if is_admitted(queue, job, now, full):
            jobs.append(activate(queue, job, lease, holder.holder, now))
            full = full_keys(queue)
            if queue.settings.fair:
                line.sort(key=order, reverse=True)
    due_later = next_due(queue, now)
    return ClaimResult(jobs=tuple(jobs), now=now, next_due=due_later)  # type: ignore[arg-type]


def claim_order(queue: OracleQueue, job: Job, seq: int, picked: int = 0) -> ClaimOrder:
    """Return the place of a job in the order of claims. `picked` orders keys that share a place."""
    place, is_shared = queue.place(job.data.key)
    return -job.data.priority, place, picked if is_shared else 0, job.run_at, seq


# -- beside other clients ----------------------------------------------------------------------------


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    lease, limit = part.request["lease"], part.request["limit"]
    if not part.answered:
        step(world.oracle, part.call.queue, lease, limit, now)
        return
    queue, answer = world.oracle.queue(part.call.queue), part.answer
    holder = queue.lease(lease, now)
    if answer.lost or holder is None:
        if (holder is None) != answer.lost:
            alive = "alive" if holder else "dead"
            raise Mismatch(f"claim answered lost={answer.lost}, but the lease is {alive}")
        return
    if answer.now != now:
        raise WrongTime(f"claim answered now={answer.now}; expected {now}")
    activate_claimed_jobs(world, part, queue, answer, lease, holder.holder)


def activate_claimed_jobs(
    world: OracleWorld, part: CallPart, queue: OracleQueue, answer: ClaimResult, lease: str, holder: str
) -> None:
    """Activate the claimed jobs in the oracle. Raises Mismatch for a job not due, out of order or skipped."""
    now, limit = answer.now, part.request["limit"]
    full = check_settings(part, queue, len(answer.jobs)) or len(answer.jobs) == limit
    if len(answer.jobs) > limit or len({job.id for job in answer.jobs}) < len(answer.jobs):
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]} with the limit {limit}")
    queue.update_ring()
    keys = [claim_order(queue, job, job.seq) for job in answer.jobs]
    if keys != sorted(keys) and not queue.settings.fair:
        raise Mismatch(f"claimed {[job.id for job in answer.jobs]} in the wrong order")
    for job in answer.jobs:
        current = queue.record(job.id).current
        if current is None or current.run is not None or current.run_at > now:
            raise Mismatch(f"claimed {job.id!r}, which was not due")
        check_skipped(world, part, queue, claim_order(queue, job, job.seq))
        if not part.settings_change and not is_admitted(queue, current, now):
            raise Mismatch(f"claimed {job.id!r}, which the limits of the queue did not admit")
        began = now if job.run is None else job.run.claimed_at
        if began < now or began not in (now, *part.times):
            raise Mismatch(f"the run of {job.id!r} began at {began}; the claim answered now={now}")
        actual = activate(queue, current, lease, holder, began)
        match(world.numbering, (queue.name, job.id), actual, job, f"claimed {job.id!r}")
    if not full:
        check_skipped(world, part, queue, None)


def check_skipped(world: OracleWorld, part: CallPart, queue: OracleQueue, until: ClaimOrder | None) -> None:
    """Raise Mismatch if an admitted job stands before `until` in the order, or anywhere if that is None."""
    # An overlapping call may free room, and may charge a clock, before or after the claim has read them.
    if queue.settings.limits_claims and (part.concurrent_ids or part.settings_change):
        return
    now = part.answer.now
    for job in queue.jobs():
        if job.run is not None or job.run_at > now or part.may_skip(job.id):
            continue
        if until is not None and queue.place(job.data.key)[1]:
            continue
        seq = world.numbering.actual("seq", (queue.name, job.id), job.seq) if job.seq else 0
        passed = until is None or (seq is not None and claim_order(queue, job, seq) < until)
        if passed and is_admitted(queue, job, now):
            raise Mismatch(f"claim skipped {job.id!r}, which was due")


def check_settings(part: CallPart, queue: OracleQueue, taken: int) -> bool:
    """Return whether the settings of the queue allow the claim to take no more than the jobs `taken`.

    Raises Mismatch if they allow fewer. While a `configure` overlaps the claim, any settings may apply.
    """
    settings = queue.settings
    if part.settings_change:
        return True
    if settings.paused:
        if taken:
            raise Mismatch(f"claimed {taken} jobs from a paused queue")
        return True
    if settings.max_active is None:
        return False
    room = max(0, settings.max_active - len(queue.held()))
    if taken > room:
        raise Mismatch(f"claimed {taken} jobs; max_active {settings.max_active} leaves room for {room}")
    # An overlapping call may free room only after the claim has counted.
    return taken == room or bool(part.concurrent_ids)


def touches(call: ClientCall) -> Iterator[str]:
    """Yield the ids that the claim took. Without an answer, it may have taken any.

    A claim that lost its lease may have held any job before it knew.
    """
    if call.completion != "answered" or call.answer.lost:
        yield ANY_ID
    else:
        yield from (job.id for job in call.answer.jobs)


# -- in lockstep -------------------------------------------------------------------------------------


class ClaimCalls(LockstepCore):
    """`claim`, called in lockstep."""

    def claim(self, queue: str, lease: str, limit: int, *, now: int | None = None) -> ClaimResult:
        args = {"lease": lease, "limit": limit}
        called_at = self.now if now is None else now
        work = self.storage.claim(queue, lease, limit, now=called_at)
        answer = self.call("claim", {"queue": queue, **args}, work)
        self.compare_claim(queue, args, answer, self.newest_handle)
        self.after_write(queue)
        return answer

    def compare_claim(
        self, queue: str, args: Mapping[str, Any], answer: ClaimResult, storage: Storage
    ) -> None:
        """Compare the answer of a claim by the handle `storage`. Later reads may use another one."""
        taken = [job.id for job in answer.jobs]
        expected = step(self.oracle, queue, args["lease"], args["limit"], self.now, taken)
        if expected.lost:
            answer = replace(answer, next_due=None)
        self._compare_jobs(queue, expected, answer)
        self.compare(queue, "", replace(expected, jobs=()), replace(answer, jobs=()))
        self.keep_token(queue, answer, storage)

    def _compare_jobs(self, queue: str, expected: ClaimResult, answer: ClaimResult) -> None:
        ids, wanted = [job.id for job in answer.jobs], [job.id for job in expected.jobs]
        if ids != wanted:
            raise Mismatch(f"claimed {ids}; expected {wanted}")
        for old, new in zip(expected.jobs, answer.jobs, strict=True):
            self.compare(queue, old.id, old, new)
            if new.run is not None and new.run.fence < answer.now * 1000:
                raise Mismatch(f"the fence {new.run.fence} of {new.id!r} is below now, {answer.now} ms")


class ClaimRules(MachineBase):
    @rule(queue=some.every_queue, pick=some.picks, limit=some.limits, alive=some.mostly_true)
    def claim(self, queue: str, pick: int, limit: int, *, alive: bool) -> None:
        lease = self.live_lease(queue) if alive else self.issued_lease(pick)
        self.issued.add_claim(queue, self.lockstep.claim(queue, lease, limit))


# -- in recorded histories ---------------------------------------------------------------------------


def recorded_request(queue: str, lease: str, limit: int, **_: Any) -> StepFields:
    return [{"op": "claim", "queue": queue, "lease": lease, "limit": limit}]


def recorded_reply(requested: StepFields, answer: ClaimResult) -> StepFields:
    """Return one step per job, and one more if the claim took fewer jobs than its limit or lost its lease."""
    [claim] = requested
    taken = [job_fields(claim, job, answer.now) for job in answer.jobs]
    if len(taken) >= claim["limit"]:
        return taken
    return [*taken, {**claim, "status": "lost" if answer.lost else "short", "now": answer.now}]


def job_fields(claim: Fields, job: Job, now: int) -> Fields:
    run, origin = job.run, job.origin
    return {
        **claim,
        "id": job.id,
        "status": "taken",
        "now": now,
        "claimed_at": run.claimed_at if run and run.claimed_at != now else 0,
        "fence": run.fence if run else 0,
        "first": job.first,
        "revision": job.revision,
        "attempt": job.attempts,
        "retries": job.retries,
        "stalls": job.stalls,
        "timeouts": job.timeouts,
        "priority": job.data.priority,
        "job_key": job.data.key or "",
        "run_at": job.run_at,
        "seq": job.seq,
        "payload": digest(job.data.payload),
        "memo": digest(job.data.memo),
        "origin": (origin.queue, origin.id, origin.fence) if origin else None,
    }


ENCODING = CallEncoding(recorded_request, recorded_reply)

VERB = Verb(
    name="claim",
    section="2; 3, claim",
    weight=9,
    arguments=lambda action, _, state: {"lease": state.lease(action), "limit": action.limit},
    apply=apply,
    touches=touches,
    remember=lambda state, call: state.add_claim(call.answer),
    races=read_races("""
        claim beside claim (2)
        claim beside enqueue
        claim beside settle
        claim beside reap (3, Leases)
        claim beside claim (3, claim): leases; configure one active; enqueue a b / claim one / claim one
        claim beside configure (3, Queues as a whole): both wait / claim one / configure pause / claim
        claim beside claim (2): keyed; configure one of a key / claim one / claim one / claim
        claim beside claim (2): keyed; configure one start / claim one / claim one / claim
        claim beside claim (2): keyed; configure one start of a key / claim one / claim one / claim
        claim beside claim (2, Turns of keys): turns / claim one / claim one / claim
        claim beside settle (2, Turns of keys): turns; claim one / claim one / settle retry / claim
        claim beside enqueue (2, Turns of keys): turns / claim one / enqueue c data=1 / claim
        claim beside configure (2, Turns of keys): keyed / claim one / configure no start of a key / claim
        claim beside settle (2): a full key / claim / settle / claim
        claim beside enqueue (2): a full key / claim / enqueue b data=4 / claim
        claim beside configure (2): a full key / claim / configure any of a key / claim
        claim beside forget (2): a full key / claim / forget / claim
    """),
    scenes=read_scenes("""
        claim: both wait / claim
        claim one of a key: one of two / claim
        charge a rate: one start / claim
    """),
    encoding=ENCODING,
)
#: The blocking form of `claim`, which only recorded runs call.
BLOCKING = Verb(
    name="claim_blocking",
    section="3, Blocking claims",
    arguments=lambda action, _, state: {
        "lease": state.lease(action),
        "limit": action.limit,
        "claim_id": f"{action.ids[0]}-{action.serial}",
        "timeout": 0.02,
    },
    takes_now=False,
    remember=VERB.remember,
    encoding=ENCODING,
)
