"""The verb `grant`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from dibs.model.results import GrantResult
from dibs_conformance import strategies as some
from dibs_conformance.lockstep import LockstepCore, MachineBase
from dibs_conformance.oracle import Oracle
from dibs_conformance.oracle.numbering import Mismatch
from dibs_conformance.oracle.queue import OracleLease, OracleWorld
from dibs_conformance.verbs.actions import LONG_TTL, SHORT_TTL, ClientCall, ClientState
from dibs_conformance.verbs.verb import CallEncoding, CallPart, StepFields, Verb, read_scenes


def step(oracle: Oracle, queues: Iterable[str], lease: str, ttl: int, holder: str, now: int) -> None:
    for queue in queues:
        oracle.queue(queue).leases[lease] = OracleLease(holder, now + ttl)


def apply(world: OracleWorld, part: CallPart, now: int) -> None:
    if part.answered:
        args = part.request
        step(world.oracle, [part.call.queue], part.answer.lease, args["ttl"], args["holder"], now)


def remember(state: ClientState, call: ClientCall) -> None:
    state.leases.append(call.answer.lease)


class GrantCalls(LockstepCore):
    """`grant`, called in lockstep."""

    def grant(self, queues: Sequence[str], ttl: int, holder: str) -> str:
        args = {"queues": list(queues), "ttl": ttl, "holder": holder}
        answer = self.call("grant", args, self.storage.grant(queues, ttl, holder, now=self.now))
        if (answer.now, answer.expires_at) != (self.now, self.now + ttl):
            raise Mismatch(f"grant answered now {answer.now}, expires_at {answer.expires_at}")
        if any(answer.lease in self.oracle.queue(queue).leases for queue in queues):
            raise Mismatch(f"grant answered {answer.lease!r}, a lease that was granted before")
        step(self.oracle, queues, answer.lease, ttl, holder, self.now)
        return answer.lease


class GrantRules(MachineBase):
    @rule(ttl=some.ttls, holder=st.sampled_from(some.HOLDERS))
    def grant(self, ttl: int, holder: str) -> None:
        self.issued.leases.append(self.lockstep.grant(some.EVERYWHERE, ttl, holder))


def recorded_request(queues: Sequence[str], *_: Any, **__: Any) -> StepFields:
    return [{"op": "grant", "queue": queue} for queue in queues]


def recorded_reply(requested: StepFields, answer: GrantResult) -> StepFields:
    fields = {"status": "granted", "lease": answer.lease, "now": answer.now, "until": answer.expires_at}
    return [{**one, **fields} for one in requested]


VERB = Verb(
    name="grant",
    section="3, Leases",
    weight=1,
    arguments=lambda action, _, __: {"ttl": SHORT_TTL if action.lease else LONG_TTL, "holder": "ann"},
    apply=apply,
    takes_queues=True,
    remember=remember,
    scenes=read_scenes("grant: leases / grant"),
    encoding=CallEncoding(recorded_request, recorded_reply),
)
