"""The actions of the test clients: random calls as data, which can be sent to another process.

A failing example is shrunk by removing actions. So an action does not contain fences, revisions or leases.
It picks them from the `ClientState` when it runs, for example "the newest run".
"""

from __future__ import annotations

from random import Random
from typing import Literal

from attrs import define, evolve, field, frozen

from dibs.model.job import Error, JobData, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    Fail,
    HandOff,
    JobPatch,
    OnConflict,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    StartRate,
    Update,
)
from dibs.model.results import ClaimResult, SettleAndClaimResult, State
from dibs_conformance.concurrent.calls import Call

#: Lifetimes of leases in ms. A short lease expires within an example once a client adds `PAST_SHORT_TTL` to
#: its time.
LONG_TTL, SHORT_TTL, PAST_SHORT_TTL = 3_600_000, 10, 11
UNUSED_LEASE = "0" * 32
#: 2026-01-01 UTC, in ms.
START = 1_767_225_600_000
#: The ids of all examples. Few ids, so that clients meet.
IDS = ("a", "b")

CONFLICT_OPTIONS: tuple[OnConflict, ...] = (
    *(Update(), Update(), Update(), Reject(), Reject(failed=True)),
    *(Update(data=False, run_at="earlier"), Update(run_at="later", reset_counts=False)),
    Update(create=False, run_at="later"),
)
#: `Action.conflict` for an update-only request, whose job has no data.
UPDATE_ONLY = len(CONFLICT_OPTIONS) - 1
JOB_DATA = (
    JobData(payload=b"1"),
    JobData(payload=b"2", priority=1),
    JobData(payload=b"3", attributes={"a": b"1"}),
    JobData(payload=b"4", key="k"),
    JobData(payload=b"5", key="m"),
)
#: `Action.data` for jobs with the key `k`, and with another key.
KEYED_DATA, OTHER_KEY_DATA = 3, 4
#: `Action.data` for a payload of `LARGE_BYTES` bytes.
LARGE_DATA, LARGE_BYTES = -1, 1_000_000
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
    "hand off": HandOff(),
}
PATCHES = (JobPatch(attributes={"b": b"2"}), JobPatch(priority=1, delay=5, lease=7))
#: The retention of outcomes, in ms, that the settings patch "short outcomes" configures.
SHORT_RETENTION = 5
#: The progress and the memo of a report.
REPORTS: tuple[tuple[bytes | None, bytes | None], ...] = (
    (b"0.5", None),
    (None, b"m1"),
    (b"0.5", b"m2"),
    (None, b""),
)
#: Keyed by name, because the report of a failure prints the name. No patch trims the log. A storage without
#: the capability `limits` refuses some of them.
SETTINGS_PATCHES: dict[str, SettingsPatch] = {
    "pause": SettingsPatch(paused=True),
    "fail handler": SettingsPatch(fail_handler=True),
    "no fail handler": SettingsPatch(fail_handler=False),
    "results in the log": SettingsPatch(log_results=100),
    "resume": SettingsPatch(paused=False),
    "one active": SettingsPatch(max_active=1),
    "any active": SettingsPatch(max_active=None),
    "one of a key": SettingsPatch(per_key=1),
    "any of a key": SettingsPatch(per_key=None),
    "one start": SettingsPatch(rate=StartRate(1, 60_000)),
    "one start of a key": SettingsPatch(key_rate=StartRate(1, 60_000)),
    "any start": SettingsPatch(rate=None, key_rate=None),
    "log size": SettingsPatch(log_bytes=32_000_000),
    "log age": SettingsPatch(log_age=43_200_000),
    "key age": SettingsPatch(request_key_age=1_800_000),
    "short outcomes": SettingsPatch(
        retention=OutcomeRetention(
            completed=SHORT_RETENTION, failed=SHORT_RETENTION, cancelled=SHORT_RETENTION
        )
    ),
    "all events": SettingsPatch(log_level="all"),
}
#: Only a claim or an end must obey a `configure` that has returned before it began. A call that overlaps may
#: take effect later and obey the former settings, so most settings change while no call overlaps.
ONLY_IN_SETUP = frozenset(
    {"short outcomes", "all events", "fail handler", "no fail handler", "results in the log"}
)
LISTED_STATES: tuple[State, ...] = ("waiting", "active", "blocked", "completed")
#: Relative frequency of each operation.
# fmt: off
WEIGHTS = {
    "enqueue": 10, "claim": 9, "settle": 10, "settle_and_claim": 2, "serve": 2, "finish": 2, "renew": 2,
    "drop": 2, "reap": 4, "cancel": 4, "amend": 2, "retry_failed": 2, "forget": 2, "report": 1, "get": 2,
    "grant": 1, "configure": 2, "prune": 2, "import_": 2, "export": 1, "split": 1, "list": 1, "counts": 1,
    "events": 3, "compact": 1,
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
    #: A key of `SETTINGS_PATCHES`.
    configure_to: str = "pause"
    #: The state of a listing.
    state: State = "waiting"


#: Every example begins with one long and one short lease.
GRANTS = (Action(operation="grant"), Action(operation="grant", lease=1))


@frozen
class Hold:
    """The point at which a client stops until the other clients of its round are done."""

    #: Counts the coroutines that the client enters or resumes, or its lines of storage code.
    at: int
    unit: Literal["coroutine", "line"] = "coroutine"


@define
class ClientState:
    """The runs, revisions, leases and offsets of the log that clients received so far, oldest first."""

    runs: list[tuple[str, int]] = field(factory=list)
    revisions: list[tuple[str, int]] = field(factory=list)
    leases: list[str] = field(factory=list)
    offsets: list[str] = field(factory=list)

    def record(self, call: Call) -> None:
        """Add the runs, revisions, leases and offsets that the answer of a call contains."""
        if call.completion != "answered":
            return
        if call.operation == "grant":
            self.leases.append(call.answer.lease)
        elif call.operation == "events":
            self.offsets.append(call.answer.offset)
        elif call.operation == "enqueue":
            # Skip repeated enqueues. Their answer has the revision of the first enqueue with that
            # request_key, often for another id. If the range of this id covers that revision by chance,
            # the linearizability check cannot decide whether the answer is right.
            ids = (request.job.id for request in call.args["requests"])
            answers = zip(ids, call.answer, strict=True)
            self.revisions += [(id, answer.revision) for id, answer in answers if not answer.repeated]
        elif call.operation in ("claim", "settle_and_claim", "serve"):
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
    #: The place in the storage's code at which the client stops during this action; None for no stop. Clients
    #: without a scheduler ignore it.
    hold: Hold | None = None

    def with_own_state(self) -> Program:
        """Return a copy with its own `ClientState`, so that the client can add to it."""
        state = self.state
        own = ClientState(list(state.runs), list(state.revisions), list(state.leases), list(state.offsets))
        return evolve(self, state=own)


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
        configure_to=random.choice([name for name in SETTINGS_PATCHES if name not in ONLY_IN_SETUP]),
        state=random.choice(LISTED_STATES),
    )
