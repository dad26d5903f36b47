"""The verb `renew`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hypothesis.stateful import rule
from msgspec.structs import replace

from dibs.model.results import RenewResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.matching import match
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import OracleQueue, OracleWorld
from dibs_conformance.verbs.actions import SHORT_TTL
from dibs_conformance.verbs.verb import (
    CallEncoding,
    CallPart,
    Fields,
    StepFields,
    Verb,
    read_races,
    read_scenes,
)


def step(oracle: Oracle, queues: Iterable[str], lease: str, ttl: int, now: int) -> dict[str, RenewResult]:
    return {queue: renew(oracle.queue(queue), lease, ttl, now) for queue in queues}


def renew(queue: OracleQueue, lease: str, ttl: int, now: int) -> RenewResult:
    """Extend a live lease to `ttl` from now, but never shorten it."""
    found = queue.lease(lease, now)
    if found is None:
        return RenewResult(alive=False, now=now)
    found.expires_at = max(found.expires_at, now + ttl)
    requested = sorted(job.id for job, run in queue.held(lease) if run.cancel_requested)
    return RenewResult(alive=True, now=now, expires_at=found.expires_at, cancel_requested=tuple(requested))


def comparable(answer: RenewResult, expected: RenewResult) -> RenewResult:
    """Return the answer in the order of the oracle. The contract leaves the rest of a lost answer open."""
    requested = tuple(sorted(answer.cancel_requested)) if expected.alive else ()
    ends = answer.expires_at if expected.alive else 0
    return replace(answer, cancel_requested=requested, expires_at=ends)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    queue = part.call.queue
    expected = step(world.oracle, [queue], part.request["lease"], part.request["ttl"], now)[queue]
    if part.answered:
        actual = part.answer[queue]
        # As in a lost claim: the storage may read the time before another call ends the lease.
        if actual.alive or expected.alive:
            match(world.numbering, (queue, ""), expected, comparable(actual, expected))


class RenewCalls(LockstepCore):
    """`renew`, called in lockstep."""

    def renew(self, queues: Sequence[str], lease: str, ttl: int) -> None:
        args = {"lease": lease, "ttl": ttl}
        work = self.storage.renew(queues, lease, ttl, now=self.now)
        answers = self.call("renew", {"queues": queues, **args}, work)
        expected = step(self.oracle, queues, lease, ttl, self.now)
        if answers.keys() != expected.keys():
            raise Mismatch(f"renew answered for {sorted(answers)}")
        for queue, wanted in expected.items():
            self.compare(queue, "", wanted, comparable(answers[queue], wanted))


class RenewRules(MachineBase):
    @rule(pick=some.picks, ttl=some.ttls)
    def renew(self, pick: int, ttl: int) -> None:
        self.lockstep.renew(some.EVERYWHERE, self.issued_lease(pick), ttl)


def recorded_request(queues: Sequence[str], lease: str, *_: Any, **__: Any) -> StepFields:
    return [{"op": "renew", "queue": queue, "lease": lease} for queue in queues]


def recorded_reply(requested: StepFields, answer: Mapping[str, RenewResult]) -> StepFields:
    return [{**one, **renewal_fields(answer[one["queue"]])} for one in requested]


def renewal_fields(answer: RenewResult) -> Fields:
    until = answer.expires_at if answer.alive else 0
    return {"status": "alive" if answer.alive else "lost", "now": answer.now, "until": until}


VERB = Verb(
    name="renew",
    section="3, Leases",
    weight=2,
    arguments=lambda action, _, state: {"lease": state.lease(action), "ttl": SHORT_TTL},
    apply=apply,
    takes_queues=True,
    races=read_races("""
        renew beside reap (3, Leases)
        renew beside drop (3, Leases): / renew lease=1 / drop lease=1 / claim lease=1
    """),
    scenes=read_scenes("renew: runs under a short lease / renew lease=1"),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
