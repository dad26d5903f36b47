"""The verb `settle_and_claim`: settlements, and then a claim, in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from dibs.model.requests import Settlement
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import MachineBase, has_runs
from dibs_conformance.verbs import claim, settle
from dibs_conformance.verbs.actions import (
    ClientAction,
    ClientCall,
    ClientState,
)
from dibs_conformance.verbs.verb import (
    ANY_ID,
    CallEncoding,
    CallPart,
    StepFields,
    Verb,
    batch_parts,
    read_races,
    read_scenes,
)


def build_arguments(action: ClientAction, queue: str, state: ClientState) -> dict[str, Any]:
    return {
        "settlements": settle.build_settlements(action, queue, state),
        "lease": state.lease(action),
        "limit": action.limit,
    }


def split(call: ClientCall) -> Iterator[CallPart]:
    """Yield a part for each settlement, and then the claim."""
    is_answered = call.completion == "answered"
    yield from batch_parts(call, settle.VERB, call.answer.settled if is_answered else None)
    taken = call.answer.claim if is_answered else None
    index = len(call.args["settlements"])
    yield CallPart(call, "claim", call.args, taken, claim.apply, index=index)


def touches(call: ClientCall) -> Iterator[str]:
    """Yield the ids that the claim took. Without an answer, it may have taken any."""
    if call.completion != "answered" or call.answer.claim.lost:
        yield ANY_ID
    else:
        yield from (job.id for job in call.answer.claim.jobs)


class SettleAndClaimCalls(settle.SettleCalls, claim.ClaimCalls):
    """`settle_and_claim`, called in lockstep."""

    def settle_and_claim(
        self, queue: str, settlements: Sequence[Settlement], lease: str, limit: int
    ) -> ClaimResult:
        args = {"settlements": settlements, "lease": lease, "limit": limit}
        work = self.storage.settle_and_claim(queue, settlements, lease, limit, now=self.now)
        answer, storage = self.call("settle_and_claim", {"queue": queue, **args}, work), self.newest_handle
        self.compare_settlements(queue, settlements, answer.settled)
        self.compare_claim(queue, {"lease": lease, "limit": limit}, answer.claim, storage)
        self.after_write(*settle.changed_queues(queue, settlements))
        return answer.claim


class SettleAndClaimRules(MachineBase):
    @precondition(has_runs)
    @rule(picked=some.picked, data=st.data(), limit=some.limits)
    def settle_and_claim(self, picked: list[int], data: st.DataObject, limit: int) -> None:
        queue = self.issued_run(picked[0])[0]
        settlements, lease = self.settlements(data, picked, queue), self.live_lease(queue)
        self.issued.add_claim(queue, self.lockstep.settle_and_claim(queue, settlements, lease, limit))


def recorded_request(
    queue: str, settlements: Sequence[Settlement], lease: str, limit: int, **_: Any
) -> StepFields:
    return [*settle.recorded_request(queue, settlements), *claim.recorded_request(queue, lease, limit)]


def recorded_reply(requested: StepFields, answer: SettleAndClaimResult) -> StepFields:
    *settles, claimed = requested
    return [*settle.recorded_reply(settles, answer.settled), *claim.recorded_reply([claimed], answer.claim)]


VERB = Verb(
    name="settle_and_claim",
    section="3, settle",
    weight=2,
    arguments=build_arguments,
    split=split,
    apply=claim.apply,
    touches=touches,
    remember=lambda state, call: state.add_claim(call.answer.claim),
    races=read_races("""
        settle_and_claim beside reap (3, Leases): / settle_and_claim late / reap late; claim
        settle_and_claim beside claim (2): a full key / settle_and_claim / claim / claim
    """),
    scenes=read_scenes("""
        settle_and_claim: runs with a successor / settle_and_claim
        free a key and claim: one of two; claim / settle_and_claim a b
    """),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
