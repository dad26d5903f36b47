"""What clients are told to do, as data: it can be sent to a process, and left out of a story.

An act says what, and of what it was handed a client picks: the newest run, the one before, the short lease.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from random import Random
from typing import Any

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import ClaimResult, SettleAndClaimResult
from dibs_conformance.concurrent.calls import Call

#: ms; a short lease ends within an example when somebody is late.
LONG, SHORT, LATE = 3_600_000, 10, 11
NOBODYS = "0" * 32

CONFLICTS: tuple[OnConflict, ...] = (
    *(Update(), Update(), Update(), Reject(), Reject(failed=True)),
    *(Update(data=False, run_at="earlier"), Update(run_at="later", reset_counts=False)),
)
DATA = (
    JobData(payload=b"1"),
    JobData(payload=b"2", priority=1),
    JobData(payload=b"3", attributes={"a": b"1"}),
)
#: As `data` of an act: a payload of so many bytes.
LARGE, LARGE_BYTES = -1, 1_000_000
ERROR = Error(type="ValueError", message="no")
#: By name, because a story says the name.
HOWS: dict[str, SettleAction] = {
    "complete": Complete(result=b"1"),
    "fail": Fail(error=ERROR),
    "fail, handled": Fail(error=ERROR, handled=True),
    "cancelled": Cancelled(),
    "retry": RetryLater(),
    "retry later": RetryLater(delay=5, cause="timeout", error=ERROR),
    "release": Release(),
    "hand off": HandOff(),
}
PATCHES = (JobPatch(attributes={"b": b"2"}), JobPatch(priority=1, delay=5))
#: How often each verb is chosen, of what the sum is.
# fmt: off
WEIGHTS = {
    "enqueue": 10, "claim": 9, "settle": 10, "settle_and_claim": 3, "finish": 2, "renew": 2, "drop": 2,
    "reap": 4, "cancel": 4, "amend": 2, "retry_failed": 2, "forget": 2, "report": 1, "get": 2, "grant": 1,
}
# fmt: on


@dataclass(frozen=True, kw_only=True)
class Act:
    """One thing to do. `late`: how many ms after the others' now."""

    verb: str
    ids: tuple[str, ...] = ("a",)
    #: How far back among what was handed out.
    pick: int = 0
    #: Which lease: 0 the long one, 1 the short one, 2 nobody's.
    lease: int = 0
    how: str = "complete"
    conflict: int = 0
    data: int = 0
    delay: int = 0
    limit: int = 10
    flag: bool = False
    late: int = 0


@dataclass
class Hands:
    """What a client was handed, oldest first."""

    runs: list[tuple[str, int]] = field(default_factory=list)
    revisions: list[tuple[str, int]] = field(default_factory=list)
    leases: list[str] = field(default_factory=list)

    def take(self, call: Call) -> None:
        """Remember what an answer hands out."""
        if call.fate != "answered":
            return
        if call.verb == "grant":
            self.leases.append(call.answer.lease)
        elif call.verb == "enqueue":
            # A repeat is told the numbers of whatever its key was first used for: often another id's. The
            # range of this id may cover such a number or not, which no judge of one id can tell.
            asked = (request.job.id for request in call.args["requests"])
            told = zip(asked, call.answer, strict=True)
            self.revisions += [(id, one.revision) for id, one in told if not one.repeated]
        elif call.verb in ("claim", "settle_and_claim"):
            self._claimed(call.answer.claim if isinstance(call.answer, SettleAndClaimResult) else call.answer)

    def _claimed(self, claim: ClaimResult) -> None:
        self.runs += [(job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(job.id, job.revision) for job in claim.jobs]


@dataclass(frozen=True)
class Order:
    """What a client is to do next, with what it was handed before."""

    acts: tuple[Act, ...]
    queue: str
    hands: Hands
    now: int

    def own(self) -> Order:
        """The same with hands of its own, which it may fill."""
        hands = Hands(list(self.hands.runs), list(self.hands.revisions), list(self.hands.leases))
        return replace(self, hands=hands)


def drawn(random: Random, ids: tuple[str, ...], *, verb: str = "", late: int = 0) -> Act:
    """Draw an act, or one of this verb."""
    verb = verb or random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return Act(
        verb=verb,
        ids=tuple(random.choices(ids, (4, *(1 for _ in ids[1:])), k=random.choice((1, 1, 1, 2)))),
        pick=random.choice((0, 0, 0, 1, 2)),
        lease=random.choice((0, 0, 0, 1, 1, 2)),
        how=random.choice(list(HOWS)),
        conflict=random.randrange(len(CONFLICTS)),
        data=random.randrange(len(DATA)),
        delay=random.choice((0, 0, 0, 5)),
        limit=random.choice((1, 10)),
        flag=random.random() < 0.5,
        late=late or random.choice((0, 0, 0, 0, LATE)),
    )


def words(act: Act, queue: str, hands: Hands, now: int) -> dict[str, Any]:
    """Return the arguments of the call that an act stands for."""
    return WORDS.get(act.verb, _by_ids)(act, queue, hands, now)


@cache
def large() -> JobData:
    """A payload that no storage can make small."""
    return JobData(payload=Random(0).randbytes(LARGE_BYTES))


def requests_of(act: Act) -> list[EnqueueRequest]:
    data = large() if act.data == LARGE else DATA[act.data]
    return [
        EnqueueRequest(
            job=NewJob(id=id, data=data, delay=act.delay or None),
            on_conflict=CONFLICTS[act.conflict],
            request_key="k" if act.flag and act.pick else None,
        )
        for id in act.ids
    ]


def _settlements(act: Act, queue: str, hands: Hands) -> list[Settlement]:
    id, fence = _picked(hands.runs, act.pick) or (act.ids[0], 1)
    how = HOWS[act.how]
    if isinstance(how, Complete) and act.flag:
        how = Complete(result=b"1", then=(FollowUp(queue=queue, job=NewJob(id=act.ids[-1])),))
    return [Settlement(id=id, fence=fence, action=how)]


def _finish(act: Act, queue: str, hands: Hands, _: int) -> dict[str, Any]:
    id, revision = _picked(hands.revisions, act.pick) or (act.ids[0], 1)
    [settlement] = _settlements(act, queue, hands)
    how = settlement.action
    end = how if isinstance(how, Complete | Fail | Cancelled) else Cancelled()
    return {"id": id, "end": end, "revision": revision}


def _report(act: Act, _: str, hands: Hands, __: int) -> dict[str, Any]:
    id, fence = _picked(hands.runs, act.pick) or (act.ids[0], 1)
    return {"id": id, "fence": fence, "progress": b"0.5"}


def _by_ids(act: Act, _: str, __: Hands, ___: int) -> dict[str, Any]:
    ids = list(dict.fromkeys(act.ids))
    if act.verb == "cancel":
        return {"ids": ids, "running": act.flag}
    return {"ids": ids[:1] if act.verb == "get" else ids}


def _lease(act: Act, hands: Hands) -> str:
    return hands.leases[act.lease] if act.lease < min(2, len(hands.leases)) else NOBODYS


def _picked(known: list[tuple[str, int]], pick: int) -> tuple[str, int] | None:
    return known[-1 - pick % len(known)] if known else None


#: From an act to the arguments of its verb.
Words = Callable[[Act, str, Hands, int], dict[str, Any]]
WORDS: dict[str, Words] = {
    "enqueue": lambda act, _, __, ___: {"requests": requests_of(act)},
    "claim": lambda act, _, hands, __: {"lease": _lease(act, hands), "limit": act.limit},
    "settle": lambda act, queue, hands, _: {"settlements": _settlements(act, queue, hands)},
    "settle_and_claim": lambda act, queue, hands, _: {
        "settlements": _settlements(act, queue, hands),
        "lease": _lease(act, hands),
        "limit": act.limit,
    },
    "finish": _finish,
    "report": _report,
    "grant": lambda act, _, __, ___: {"ttl": SHORT if act.lease else LONG, "holder": "ann"},
    "renew": lambda act, _, hands, __: {"lease": _lease(act, hands), "ttl": SHORT},
    "drop": lambda act, _, hands, __: {"lease": _lease(act, hands), "limit": 100},
    "reap": lambda _, __, ___, ____: {"limit": 100},
    "amend": lambda act, _, __, ___: {"id": act.ids[0], "patch": PATCHES[act.flag]},
}
