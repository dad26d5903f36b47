"""The verb `serve` of the capability `many_queues`: settlements and claims in several queues in one call."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import cast

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX
from dibs.model.requests import QueueStep, Settlement
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs.storage.abilities import ManyQueues
from dibs.storage.protocol import Storage
from dibs_conformance import strategies as some
from dibs_conformance.answer_types import wrong_answer
from dibs_conformance.lockstep import MachineBase, has_runs
from dibs_conformance.verbs import claim, settle_and_claim
from dibs_conformance.verbs.settle import changed_queues
from dibs_conformance.verbs.verb import Verb, read_races

#: A queue without jobs and leases, for the second step of a `serve`.
EMPTY_QUEUE = "beside"


async def serve_two(
    storage: Storage, queue: str, settlements: Sequence[Settlement], lease: str, limit: int, now: int | None
) -> SettleAndClaimResult:
    """Serve a queue, and a second one without jobs. Return the result of the first.

    A storage without the capability `many_queues` gets a settle_and_claim.
    """
    if not storage.capabilities.many_queues:
        return await storage.settle_and_claim(queue, settlements, lease, limit, now=now)
    steps = [QueueStep(EMPTY_QUEUE, limit=1), QueueStep(queue, settlements, limit)]
    answer = await cast("ManyQueues", storage).serve(steps, lease, now=now)
    if wrong := wrong_answer("serve", answer):
        raise TypeError(wrong)
    beside, served = answer
    if not beside.claim.lost:
        raise ValueError(f"a claim in a queue without leases returned {beside.claim}")
    return served


class ServeCalls(settle_and_claim.SettleAndClaimCalls):
    """`serve`, called in lockstep."""

    def serve(self, steps: Sequence[QueueStep], lease: str) -> Sequence[ClaimResult]:
        """Serve the steps, whose queues are in the order of their names. Return the claims.

        A storage may apply the steps in any order; the oracle applies them in this one. Storages without the
        capability `many_queues` get one call for each step.
        """
        storage = self.storage
        if not storage.capabilities.many_queues:
            return [self._serve_alone(step, lease) for step in steps]
        work = cast("ManyQueues", storage).serve(steps, lease, now=self.now)
        answers = self.call("serve", {"steps": steps, "lease": lease}, work)
        for step, answer in zip(steps, answers, strict=True):
            self.compare_settlements(step.queue, step.settlements, answer.settled)
            if step.limit:
                args = {"lease": lease, "limit": step.limit}
                self.compare_claim(step.queue, args, answer.claim, storage)
            else:
                self.compare(step.queue, "", ClaimResult(now=self.now), answer.claim)
        changed = [queue for step in steps for queue in changed_queues(step.queue, step.settlements)]
        self.after_write(*dict.fromkeys(changed))
        return [answer.claim for answer in answers]

    def _serve_alone(self, step: QueueStep, lease: str) -> ClaimResult:
        if step.limit:
            return self.settle_and_claim(step.queue, step.settlements, lease, step.limit)
        self.settle(step.queue, step.settlements)
        return ClaimResult(now=self.now)


#: The limit of the step of each queue; None for no step.
step_limits = st.sampled_from((10, 0, None, 1, 3))


class ServeRules(MachineBase):
    @precondition(has_runs)
    @rule(
        picked=some.picked,
        data=st.data(),
        limits=st.tuples(*[step_limits] * len(some.EVERYWHERE)),
        alive=some.mostly_true,
    )
    def serve(
        self, picked: list[int], data: st.DataObject, limits: tuple[int | None, ...], *, alive: bool
    ) -> None:
        lease = self.live_lease(some.EVERYWHERE[0]) if alive else self.issued_lease(picked[0])
        steps = [
            # A follow-up in the queue of another step would come before or after the claim of that step: a
            # storage may apply the steps in any order.
            QueueStep(queue, self.settlements(data, picked, queue, cross_queue=False), limit)
            for queue, limit in sorted(zip(some.EVERYWHERE, limits, strict=True), key=itemgetter(0))
            if limit is not None
        ]
        if not steps:
            return
        if any(step.settlements for step in steps):
            # A claim of a fail job that the same call made would hide the job from the listing after it.
            steps = [replace(step, limit=0) if step.queue.endswith(FAIL_SUFFIX) else step for step in steps]
        for step, taken in zip(steps, self.lockstep.serve(steps, lease), strict=True):
            self.issued.add_claim(step.queue, taken)


VERB = Verb(
    name="serve",
    section="3, Many queues",
    weight=2,
    arguments=settle_and_claim.build_arguments,
    split=settle_and_claim.split,
    apply=claim.apply,
    touches=settle_and_claim.touches,
    call=serve_two,
    remember=settle_and_claim.VERB.remember,
    races=read_races("""
        serve beside reap (3, Leases): / serve late / reap late; claim
        serve beside serve: / serve / serve
        serve beside claim: both wait / serve one
    """),
)
