"""The verb `settle`: it draws settlements, calls storage and oracle, and compares their answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from dibs.errors import Refused
from dibs.model.check_jobs import check_follow_ups
from dibs.model.job import FAIL_SUFFIX, Error, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import SettleResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase, has_runs
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.changes import end_current, end_kind, end_run, return_to_waiting
from dibs_conformance.oracle.ids import IdRecord, OneOf
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.steps import FOLLOWED, digest
from dibs_conformance.verbs.actions import (
    ClientAction,
    ClientState,
)
from dibs_conformance.verbs.enqueue import request_fields
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    Fields,
    StepFields,
    Verb,
    check_answer,
    compare_call,
    read_races,
    read_scenes,
)

ERROR = Error(type="ValueError", message="no")
#: Keyed by name, because the report of a failure prints the name.
SETTLE_ACTIONS: dict[str, SettleAction] = {
    "complete": Complete(result=b"1"),
    "fail": Fail(error=ERROR),
    "cancelled": Cancelled(error=ERROR),
    "retry": RetryLater(),
    "retry later": RetryLater(delay=5, cause="timeout", error=ERROR),
    "release": Release(),
    "release until": Release(delay=5),
    "park": Release(delay=5, parked=True),
    "hand off": HandOff(),
}
#: The names of the actions in recorded histories.
ACTION_NAMES: dict[type[SettleAction], str] = {
    Complete: "complete",
    Fail: "fail",
    Cancelled: "cancelled",
    RetryLater: "retry",
    Release: "release",
    HandOff: "hand_off",
}


#: The highest cost of a run, in thousandths of a start.
MOST_COST = 1_000_000_000


def build_settlements(action: ClientAction, queue: str, state: ClientState) -> list[Settlement]:
    id, fence = state.run(action)
    settle_as = SETTLE_ACTIONS[action.settle_as]
    if isinstance(settle_as, Complete) and action.flag:
        settle_as = Complete(result=b"1", then=(FollowUp(queue=queue, job=NewJob(id=action.ids[-1])),))
    return [Settlement(id=id, fence=fence, action=settle_as, cost=action.cost)]


# -- in the oracle -----------------------------------------------------------------------------------


def step(
    oracle: Oracle, queue: str, settlements: Sequence[Settlement], now: int
) -> list[SettleResult | OneOf]:
    return [settle(oracle, oracle.queue(queue), one, now) for one in settlements]


def settle(oracle: Oracle, queue: OracleQueue, settlement: Settlement, now: int) -> SettleResult | OneOf:
    """Apply a settlement if the run with its fence is active. Return OneOf where two results are correct."""
    record, action = queue.record(settlement.id), settlement.action
    job = record.current
    if job is None or job.run is None or job.run.fence != settlement.fence:
        return repeated_result(record, settlement.fence, action, now)
    if settlement.cost is not None and not 0 <= settlement.cost <= MOST_COST:
        return SettleResult("refused")
    result = settle_active(oracle, queue, record, action, now)
    if settlement.cost is not None and job.run.lease is not None and result.status != "refused":
        queue.starts.add(job.data.key, now, settlement.cost)
    return result


def settle_active(
    oracle: Oracle, queue: OracleQueue, record: IdRecord, action: SettleAction, now: int
) -> SettleResult:
    """Apply an action to the active run of an id."""
    job = record.current
    assert job is not None  # noqa: S101 - the caller checked it
    assert job.run is not None  # noqa: S101
    if isinstance(action, Complete | Fail | Cancelled):
        if breaks_limit(action):
            return SettleResult("refused")
        end_run(oracle, queue, record, action, now)
        return SettleResult("done")
    if isinstance(action, HandOff):
        return hand_off(queue, record, now)
    times = sum(time is not None for time in (action.run_at, action.delay))
    if job.run.lease is None or times > 1 or (isinstance(action, Release) and action.parked and not times):
        return SettleResult("refused")
    return SettleResult("returned" if return_to_waiting(queue, record, action, now) else "cancelled")


def repeated_result(record: IdRecord, fence: int, action: SettleAction, now: int) -> SettleResult | OneOf:
    """Return the result of a settlement for a run that is no longer active.

    If the outcome has this fence, a repeat of the same end gets its first result again. After the expiry of
    the outcome, `lost` is correct, too, because prune may have removed the outcome.
    """
    outcome = record.outcome
    lost = SettleResult("lost")
    if outcome is None or outcome.fence != fence or not fence:
        return lost
    if end_kind(action) == outcome.kind:
        result = SettleResult("done")
    elif end_kind(action) is None and outcome.kind == "cancelled":
        result = SettleResult("cancelled")
    else:
        return lost
    return result if record.live_outcome(now) else OneOf((result, lost))


def breaks_limit(action: End) -> bool:
    """Return whether the result or a follow-up of an end breaks a limit."""
    try:
        check_follow_ups(() if isinstance(action, Cancelled) else action.then)
    except Refused:
        return True
    return isinstance(action, Complete) and action.result is not None and len(action.result) > LIMITS.result


def hand_off(queue: OracleQueue, record: IdRecord, now: int) -> SettleResult:
    """Remove the run from its lease. If its cancellation was requested, end the run as cancelled instead."""
    job = record.current
    assert job is not None  # noqa: S101 - the caller checked it
    assert job.run is not None  # noqa: S101
    if job.run.lease is None:
        return SettleResult("handed_off", revision=job.revision)
    if job.run.cancel_requested:
        end_current(queue, record, "cancelled", now)
        return SettleResult("cancelled")
    record.current = replace(job, run=replace(job.run, lease=None))
    queue.log_event("handed_off", job.id, now, job)
    return SettleResult("handed_off", revision=job.revision)


# -- beside other clients ----------------------------------------------------------------------------


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue, id = part.call.queue, part.request.id
    fence = world.numbering.expected("fence", (queue, id), part.request.fence)
    [expected] = step(world.oracle, queue, [replace(part.request, fence=fence)], now)
    check_answer(world, part, id, expected)


# -- in lockstep -------------------------------------------------------------------------------------


class SettleCalls(LockstepCore):
    """`settle`, called in lockstep."""

    def settle(self, queue: str, settlements: Sequence[Settlement]) -> Sequence[SettleResult]:
        work = self.storage.settle(queue, settlements, now=self.now)
        answers = self.call("settle", {"queue": queue, "settlements": settlements}, work)
        self.compare_settlements(queue, settlements, answers)
        self.after_write(*changed_queues(queue, settlements))
        return answers

    def compare_settlements(
        self, queue: str, settlements: Sequence[Settlement], answers: Sequence[SettleResult]
    ) -> None:
        compare_call(self, VERB, queue, {"settlements": settlements}, answers)
        self.match_fail_jobs(queue + FAIL_SUFFIX)


def changed_queues(queue: str, settlements: Sequence[Settlement]) -> list[str]:
    """Return the queues in which settlements change jobs, also by follow-ups and fail jobs."""
    follow = [item.queue for s in settlements for item in getattr(s.action, "then", ())]
    return list(dict.fromkeys([queue, queue + FAIL_SUFFIX, *follow]))


class SettleRules(MachineBase):
    @precondition(has_runs)
    @rule(picked=some.picked, data=st.data())
    def settle(self, picked: list[int], data: st.DataObject) -> None:
        queue = self.issued_run(picked[0])[0]
        self.lockstep.settle(queue, self.settlements(data, picked, queue))

    @precondition(has_runs)
    @rule(pick=some.picks, data=st.data())
    def settle_one(self, pick: int, data: st.DataObject) -> None:
        self.settle([pick], data)


# -- in recorded histories ---------------------------------------------------------------------------


def recorded_request(queue: str, settlements: Sequence[Settlement], **_: Any) -> StepFields:
    return [fields for one in settlements for fields in settlement_fields(queue, one)]


def settlement_fields(queue: str, settlement: Settlement) -> list[Fields]:
    """Return a settlement and its follow-ups. The answer does not show the results of follow-ups."""
    fields = {"op": "settle", "queue": queue, "id": settlement.id, "fence": settlement.fence}
    if settlement.cost is not None:
        fields["cost"] = settlement.cost
    return [{**fields, **action_fields(settlement.action)}, *follow_up_fields(settlement.action)]


def action_fields(action: SettleAction) -> Fields:
    fields: Fields = {"how": ACTION_NAMES[type(action)]}
    if isinstance(action, Complete):
        fields["result"] = digest(action.result)
    return fields


def follow_up_fields(action: SettleAction) -> Iterator[Fields]:
    for item in action.then if isinstance(action, Complete | Fail) else ():
        yield request_fields(item.queue, EnqueueRequest(job=item.job, on_conflict=item.on_conflict))


def recorded_reply(requested: StepFields, answer: Sequence[SettleResult]) -> StepFields:
    answers, steps, done = iter(answer), list[Fields](), False
    for one in requested:
        if one["op"] == "settle":
            result = next(answers)
            steps.append({**one, "status": result.status, "revision": result.revision})
            done = result.status == "done"
        elif done:
            steps.append({**one, "status": FOLLOWED})
    return steps


VERB = Verb(
    name="settle",
    section="3, settle; 3, The fail job; 4.6",
    weight=10,
    arguments=lambda action, queue, state: {"settlements": build_settlements(action, queue, state)},
    batch="settlements",
    apply=apply,
    races=read_races("""
        settle beside settle
        settle beside reap (3, Leases): / settle late / reap late; claim
        settle beside events (3, Events): runs under a short lease; enqueue b / settle late / cancel b; events
        settle beside claim (2): a full key / settle / claim / claim
        settle beside enqueue (3, settle): runs / settle park / enqueue conflict=9
        settle beside enqueue (3, settle): runs / settle park / enqueue conflict=9; cancel
        settle beside claim (3, settle): parked / enqueue conflict=9 / claim
    """),
    scenes=read_scenes("""
        complete: runs with a successor / settle ids=a+b flag
        fail: runs with a successor; configure fail handler / settle fail
        end with updates: runs; enqueue conflict=7 / settle
        release until: runs / settle release until
        retry: runs with a successor / settle retry later
        release: runs / settle release
        park: runs / settle park
        park beside an update: runs with a successor / settle park
        hand off: runs / settle hand off
        free a key: one of two; claim / settle ids=a+b
    """),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
