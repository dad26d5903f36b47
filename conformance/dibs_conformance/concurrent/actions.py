"""The actions of the test clients: random calls as data, which can be sent to another process.

A failing example is shrunk by removing actions. So an action does not contain fences, revisions or leases.
It picks them from the `ClientState` when it runs, for example "the newest run".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from attrs import define, evolve, field, frozen

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

#: Lifetimes of leases in ms. A short lease expires within an example once a client adds `PAST_SHORT_TTL` to
#: its time.
LONG_TTL, SHORT_TTL, PAST_SHORT_TTL = 3_600_000, 10, 11
UNUSED_LEASE = "0" * 32

CONFLICT_OPTIONS: tuple[OnConflict, ...] = (
    *(Update(), Update(), Update(), Reject(), Reject(failed=True)),
    *(Update(data=False, run_at="earlier"), Update(run_at="later", reset_counts=False)),
)
JOB_DATA = (
    JobData(payload=b"1"),
    JobData(payload=b"2", priority=1),
    JobData(payload=b"3", attributes={"a": b"1"}),
)
#: `Action.data` for a payload of `LARGE_BYTES` bytes.
LARGE_DATA, LARGE_BYTES = -1, 1_000_000
ERROR = Error(type="ValueError", message="no")
#: Keyed by name, because the report of a failure prints the name.
SETTLE_ACTIONS: dict[str, SettleAction] = {
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
#: Relative frequency of each operation.
# fmt: off
WEIGHTS = {
    "enqueue": 10, "claim": 9, "settle": 10, "settle_and_claim": 3, "finish": 2, "renew": 2, "drop": 2,
    "reap": 4, "cancel": 4, "amend": 2, "retry_failed": 2, "forget": 2, "report": 1, "get": 2, "grant": 1,
}
# fmt: on


@frozen(kw_only=True)
class Action:
    """One call that a client is to make."""

    operation: str
    ids: tuple[str, ...] = ("a",)
    #: Selects a run or revision of the client's state. 0 is the newest.
    nth_newest: int = 0
    #: Selects a lease: 0 is the long lease, 1 the short lease, 2 a lease that was never granted.
    lease: int = 0
    #: A key of `SETTLE_ACTIONS`.
    settle_as: str = "complete"
    #: An index into `CONFLICT_OPTIONS`.
    conflict: int = 0
    #: An index into `JOB_DATA`, or `LARGE_DATA`.
    data: int = 0
    #: Delay of an enqueued job in ms.
    delay: int = 0
    limit: int = 10
    #: Chooses a variant of the operation, for example `running` of a cancel.
    flag: bool = False
    #: Added to the time of the example, in ms.
    clock_offset: int = 0


@define
class ClientState:
    """The runs, revisions and leases that clients received so far, oldest first."""

    runs: list[tuple[str, int]] = field(factory=list)
    revisions: list[tuple[str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)

    def record(self, call: Call) -> None:
        """Add the runs, revisions and leases that the answer of a call contains."""
        if call.completion != "answered":
            return
        if call.operation == "grant":
            self.leases.append(call.answer.lease)
        elif call.operation == "enqueue":
            # Skip repeated enqueues. Their answer has the revision of the first enqueue with that
            # request_key, often for another id. If the range of this id covers that revision by chance,
            # the linearizability check cannot decide whether the answer is right.
            ids = (request.job.id for request in call.args["requests"])
            answers = zip(ids, call.answer, strict=True)
            self.revisions += [(id, answer.revision) for id, answer in answers if not answer.repeated]
        elif call.operation in ("claim", "settle_and_claim"):
            self._record_claim(
                call.answer.claim if isinstance(call.answer, SettleAndClaimResult) else call.answer
            )

    def _record_claim(self, claim: ClaimResult) -> None:
        self.runs += [(job.id, job.run.fence) for job in claim.jobs if job.run is not None]
        self.revisions += [(job.id, job.revision) for job in claim.jobs]


@frozen
class Program:
    """The actions that one client runs next, with the client state and the time they start from."""

    actions: tuple[Action, ...]
    queue: str
    state: ClientState
    now: int

    def with_own_state(self) -> Program:
        """Return a copy with its own `ClientState`, so that the client can add to it."""
        state = ClientState(list(self.state.runs), list(self.state.revisions), list(self.state.leases))
        return evolve(self, state=state)


def random_action(
    random: Random, ids: tuple[str, ...], *, operation: str = "", clock_offset: int = 0
) -> Action:
    """Return a random action, or a random action of this operation."""
    operation = operation or random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    return Action(
        operation=operation,
        ids=tuple(random.choices(ids, (4, *(1 for _ in ids[1:])), k=random.choice((1, 1, 1, 2)))),
        nth_newest=random.choice((0, 0, 0, 1, 2)),
        lease=random.choice((0, 0, 0, 1, 1, 2)),
        settle_as=random.choice(list(SETTLE_ACTIONS)),
        conflict=random.randrange(len(CONFLICT_OPTIONS)),
        data=random.randrange(len(JOB_DATA)),
        delay=random.choice((0, 0, 0, 5)),
        limit=random.choice((1, 10)),
        flag=random.random() < 0.5,
        clock_offset=clock_offset or random.choice((0, 0, 0, 0, PAST_SHORT_TTL)),
    )


def build_arguments(action: Action, queue: str, state: ClientState, now: int) -> dict[str, Any]:
    """Return the arguments of the call that an action describes."""
    return ARGUMENTS.get(action.operation, _by_ids)(action, queue, state, now)


@cache
def large_data() -> JobData:
    """Return a payload of random bytes, which a storage cannot compress."""
    return JobData(payload=Random(0).randbytes(LARGE_BYTES))


def build_requests(action: Action) -> list[EnqueueRequest]:
    data = large_data() if action.data == LARGE_DATA else JOB_DATA[action.data]
    return [
        EnqueueRequest(
            job=NewJob(id=id, data=data, delay=action.delay or None),
            on_conflict=CONFLICT_OPTIONS[action.conflict],
            request_key="k" if action.flag and action.nth_newest else None,
        )
        for id in action.ids
    ]


def _settlements(action: Action, queue: str, state: ClientState) -> list[Settlement]:
    id, fence = _nth_newest(state.runs, action.nth_newest) or (action.ids[0], 1)
    settle_as = SETTLE_ACTIONS[action.settle_as]
    if isinstance(settle_as, Complete) and action.flag:
        settle_as = Complete(result=b"1", then=(FollowUp(queue=queue, job=NewJob(id=action.ids[-1])),))
    return [Settlement(id=id, fence=fence, action=settle_as)]


def _finish(action: Action, queue: str, state: ClientState, _: int) -> dict[str, Any]:
    id, revision = _nth_newest(state.revisions, action.nth_newest) or (action.ids[0], 1)
    [settlement] = _settlements(action, queue, state)
    settle_as = settlement.action
    end = settle_as if isinstance(settle_as, Complete | Fail | Cancelled) else Cancelled()
    return {"id": id, "end": end, "revision": revision}


def _report(action: Action, _: str, state: ClientState, __: int) -> dict[str, Any]:
    id, fence = _nth_newest(state.runs, action.nth_newest) or (action.ids[0], 1)
    return {"id": id, "fence": fence, "progress": b"0.5"}


def _by_ids(action: Action, _: str, __: ClientState, ___: int) -> dict[str, Any]:
    ids = list(dict.fromkeys(action.ids))
    if action.operation == "cancel":
        return {"ids": ids, "running": action.flag}
    return {"ids": ids[:1] if action.operation == "get" else ids}


def _lease(action: Action, state: ClientState) -> str:
    return state.leases[action.lease] if action.lease < min(2, len(state.leases)) else UNUSED_LEASE


def _nth_newest(received: list[tuple[str, int]], nth_newest: int) -> tuple[str, int] | None:
    return received[-1 - nth_newest % len(received)] if received else None


#: Builds the arguments of a call from an action, the queue, the client state and the time in ms.
ArgumentBuilder = Callable[[Action, str, ClientState, int], dict[str, Any]]
ARGUMENTS: dict[str, ArgumentBuilder] = {
    "enqueue": lambda action, _, __, ___: {"requests": build_requests(action)},
    "claim": lambda action, _, state, __: {"lease": _lease(action, state), "limit": action.limit},
    "settle": lambda action, queue, state, _: {"settlements": _settlements(action, queue, state)},
    "settle_and_claim": lambda action, queue, state, _: {
        "settlements": _settlements(action, queue, state),
        "lease": _lease(action, state),
        "limit": action.limit,
    },
    "finish": _finish,
    "report": _report,
    "grant": lambda action, _, __, ___: {"ttl": SHORT_TTL if action.lease else LONG_TTL, "holder": "ann"},
    "renew": lambda action, _, state, __: {"lease": _lease(action, state), "ttl": SHORT_TTL},
    "drop": lambda action, _, state, __: {"lease": _lease(action, state), "limit": 100},
    "reap": lambda _, __, ___, ____: {"limit": 100},
    "amend": lambda action, _, __, ___: {"id": action.ids[0], "patch": PATCHES[action.flag]},
}
