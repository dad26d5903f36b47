"""A probe of promise 8 for every verb: bad input gets the same error everywhere, before anything is written.

The table has a row for each wrong type in the signatures of the protocol, for each bad queue name, for each
number outside its range, and for each value of `bad_input.py`. A row names the error that is expected, and
the field that the error must name.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from attrs import frozen
from msgspec.structs import replace

from dibs.errors import BatchRefused, Refused
from dibs.model.job import Error, JobData, NewJob, Outcome, OutcomeRetention, Slot, Successor
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    JobPatch,
    QueueStep,
    Reject,
    Release,
    RetryLater,
    SettleAction,
    Settlement,
)
from dibs.model.results import ExportRecord, SettleAndClaimResult
from dibs.storage.abilities import ManyQueues
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import BlockingClaims, Storage
from dibs_conformance.sequential.bad_input import (
    BAD_QUEUES,
    LONGEST,
    NOW,
    WIDE,
    bad_actions,
    bad_input,
    replaced,
    wrong_arguments,
    wrong_values,
)
from dibs_conformance.sequential.scripts import HistoryCalls, play_steps
from dibs_conformance.strategies import full_overrides
from dibs_conformance.verbs import VERBS

#: The most wrong results in a report. A storage without checks would fail every row.
MOST_FINDINGS: Final = 20
#: Seconds after which a call with bad input counts as one that does not return.
PATIENCE: Final = 30.0
TOO_LARGE: Final = 2**53 + 1
TTL: Final = 60_000
#: Numbers outside the range of an argument, and words that are no choice, by argument.
OUT_OF_RANGE: Final[dict[str, tuple[Any, ...]]] = {
    "limit": (0, -1, TOO_LARGE),
    "parts": (0, -1, 1001),
    "ttl": (0, -1, LONGEST + 1),
    "revision": (-1, TOO_LARGE),
    "fence": (-1, TOO_LARGE),
    "holder": ("", "x" * 513, "a\0", "\ud800"),
    "now": (-1, "1", True, 1.5, TOO_LARGE),
}
#: The verbs whose batch gets one error for each bad item, or one result for each bad action.
BATCHES: Final = {"enqueue": BatchRefused}
SETTLING: Final = ("settle", "settle_and_claim", "serve")
#: Names of one item, by the argument that is a list of them. An import names the slot, not its field.
ITEMS: Final = {"queues": "queue", "ids": "id", "requests": "request", "records": "slot", "steps": "queue"}


@frozen
class BadCall:
    """A call that the storage must refuse: a verb and its arguments, one of which is invalid."""

    verb: str
    arguments: Mapping[str, Any]
    #: The invalid argument or field, such as "requests[1].job.id".
    path: str
    kind: str
    #: The field that the error must name exactly; "" for any name in `path`.
    field: str = ""
    #: The indexes that a BatchRefused must name; empty for any.
    indexes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.verb}, {self.path}: {self.kind}" if self.path else f"{self.verb}, {self.kind}"

    @property
    def is_bad_action(self) -> bool:
        """True for a settlement whose action is bad: its result must be `refused`."""
        return self.verb in SETTLING and (".action" in self.path or ".cost" in self.path)

    @property
    def error(self) -> type[Exception]:
        """The type that the error must have: one bad item of an enqueue is reported in a BatchRefused."""
        return BATCHES.get(self.verb, Refused) if "[" in self.path or self.indexes else Refused

    def names(self, error: Refused) -> bool:
        """Return whether the field of an error is as expected."""
        names = set(re.findall(r"\w+", self.path))
        # The valid job and the valid patch set run_at, and a job may have only one of the two.
        others = {"run_at"} if "delay" in names else set()
        fields = names | others | {ITEMS[name] for name in names if name in ITEMS}
        found = set(re.findall(r"\w+", error.field))
        return error.field == self.field if self.field else not names or bool(fields & found)


def bad_calls(good: Mapping[str, Mapping[str, Any]], claims: Capabilities) -> Iterator[BadCall]:
    """Yield the table, verb by verb. `good` has valid arguments for each verb."""
    rows = list(bad_input(claims, good["serve"]["steps"]))
    for verb, signature in verbs(claims):
        valid = good[verb] if verb in good else good[""]
        names = [name for name in inspect.signature(signature).parameters if name != "self"]
        arguments = {name: valid[name] for name in names if name in valid}
        for row in rows:
            if row.verb == verb:
                changed = {**arguments, **row.arguments}
                yield BadCall(verb, changed, "", row.kind, row.field, row.indexes)
        for name, wrong in wrong_arguments(signature, valid):
            yield BadCall(verb, {**arguments, name: wrong.argument}, wrong.path, wrong.kind)
        for path, kind, change in out_of_range(arguments):
            yield BadCall(verb, {**arguments, **change}, path, kind)
    yield from wrong_actions(good[""])


#: Costs of a run out of range.
BAD_COSTS: Final = (-1, 1_000_000_001, 2**70)


def wrong_actions(good: Mapping[str, Any]) -> Iterator[BadCall]:
    """Yield settlements with actions beyond the limits, and with each other action with one wrong field."""
    error = Error(type="E", message="m", traceback="t", cause=Error(type="C"))
    retention = OutcomeRetention(completed=1)
    actions: tuple[Any, ...] = (
        Fail(error=error, retention=retention),
        Cancelled(retention=retention, error=error),
        RetryLater(delay=1, error=error),
        Release(delay=1, parked=True),
    )
    rows: list[tuple[str, str, Any]] = [
        ("settlements[1].action", name, action) for name, action in bad_actions()
    ]
    for action in actions:
        path = f"settlements[1].action, {type(action).__name__}"
        rows += [(one.path, one.kind, one.argument) for one in wrong_values(path, SettleAction, action)]
    lost, held = good["settlements"]
    rows += [("settlements[1].cost", f"{cost}", cost) for cost in BAD_COSTS]
    for path, kind, wrong in rows:
        settlements = [lost, replaced(held, "cost" if path.endswith(".cost") else "action", wrong)]
        yield BadCall("settle", {"queue": "q", "settlements": settlements, "now": NOW}, path, kind)


def verbs(claims: Capabilities) -> Iterator[tuple[str, Any]]:
    """Yield the name and the function of each verb of the protocol, also those of claimed capabilities."""
    blocking: tuple[type, ...] = (BlockingClaims,) if claims.blocking_claim else ()
    many: tuple[type, ...] = (ManyQueues,) if claims.many_queues else ()
    for protocol in (Storage, *blocking, *many):
        for name, function in vars(protocol).items():
            if name == "claim_blocking_any" and not blocking:
                continue
            if inspect.iscoroutinefunction(function) and not name.startswith("_"):
                yield name, function


def out_of_range(arguments: Mapping[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the path, the value in words, and the changed argument of each value outside its range."""
    for kind, name in BAD_QUEUES.items():
        if "queue" in arguments:
            yield "queue", kind, {"queue": name}
        if "queues" in arguments:
            yield "queues[1]", kind, {"queues": [*arguments["queues"][:1], name]}
    for name, values in OUT_OF_RANGE.items():
        for value in values if name in arguments else ():
            yield name, f"{value!r:.40}", {name: value}


async def check_bad_calls(storage: Storage) -> tuple[int, list[str]]:
    """Make every call of the table. Return their number, and a description of each wrong result.

    The state of the storage is read after all calls of a verb. If it changed, each call is made again.
    """
    world = await BadCallWorld.prepare(storage)
    calls = list(bad_calls(world.good, storage.capabilities))
    wrong: list[str] = []
    for _, group in groupby(calls, key=lambda call: call.verb):
        wrong += await world.check_verb(list(group))
        if len(wrong) >= MOST_FINDINGS:
            break
    wrong += [] if wrong else await world.check_lease()
    return len(calls), wrong[:MOST_FINDINGS]


@frozen
class BadCallWorld:
    """A storage with jobs in several states, and the valid arguments of each verb."""

    storage: Storage
    good: Mapping[str, Mapping[str, Any]]

    @classmethod
    async def prepare(cls, storage: Storage) -> BadCallWorld:
        """Create the active jobs `held` and `handed`, `failed` with an outcome, and `seen`, which waits."""
        calls = HistoryCalls("q")
        share = " shares=kit:1" if storage.capabilities.fair else ""
        wide = f"attributes=a:{WIDE['a'].decode()}"
        steps = (
            f"set log_level=all{share}; enqueue held, handed, failed {wide}; grant {TTL}; claim; "
            f"hand_off handed, fail failed; enqueue seen delay={TTL} {wide}"
        )
        await play_steps(storage, calls, steps, now=NOW)
        records = {record.id: record for record in (await storage.export("q")).records}
        good = valid_arguments(
            calls.lease, calls.saved["held"]["held"], calls.revisions["handed"], records["held"]
        )
        return cls(storage, good)

    async def read_state(self) -> Any:
        """Return everything that a call could have written and a reader can see."""
        settings = sorted((info.name, repr(info.settings)) for info in await self.storage.queues())
        exported = [
            (await self.storage.export(queue, limit=1000)).records for queue in ("q", "q!fail", "new")
        ]
        events = [
            len((await self.storage.events(queue, limit=1000, now=NOW)).events) for queue in ("q", "new")
        ]
        if self.storage.capabilities.output:
            events.append(len((await self.storage.events("q", id="held", now=NOW)).events))
        return settings, [sorted(records, key=lambda record: record.id) for records in exported], events

    async def check_verb(self, calls: list[BadCall]) -> list[str]:
        """Make the calls of one verb, and describe the wrong results and any change of the storage."""
        before = await self.read_state()
        wrong = [text for call in calls if (text := await self.check_call(call))]
        if wrong or await self.read_state() == before:
            return wrong
        for call in calls:
            before = await self.read_state()
            await self.check_call(call)
            if await self.read_state() != before:
                return [f"{call.name}: refused, but the storage changed"]
        return [f"{calls[0].verb}: all bad input was refused, but the storage changed"]

    async def check_call(self, call: BadCall) -> str | None:
        """Make one call. Return None if it was refused as expected, else a description."""
        try:
            async with asyncio.timeout(PATIENCE):
                answer = await getattr(self.storage, call.verb)(**call.arguments)
        except Exception as error:  # noqa: BLE001 - any other exception is the finding
            return (
                None
                if error_fits(call, error)
                else f"{call.name}: {describe(error)}, expected {expected(call)}"
            )
        if call.is_bad_action:
            last = answer[-1] if call.verb == "serve" else answer
            settled = last.settled if isinstance(last, SettleAndClaimResult) else last
            if settled[-1].status == "refused":
                return None
            return f"{call.name}: the result is {settled[-1].status}, expected {expected(call)}"
        return f"{call.name}: accepted, expected {expected(call)}"

    async def check_lease(self) -> list[str]:
        """Check that no refused renew has extended the lease of `held`."""
        good = self.good[""]
        alive = (await self.storage.renew(["q"], good["lease"], 1, now=NOW + TTL + 1))["q"].alive
        return (
            ["renew: a refused call with a second, bad queue renewed the lease in the first"] if alive else []
        )


def error_fits(call: BadCall, error: Exception) -> bool:
    """Return whether the error of a call has the expected type and names the bad field."""
    if call.is_bad_action or type(error) is not call.error:
        return False
    first = error.exceptions[0] if isinstance(error, BatchRefused) else error
    if call.indexes and isinstance(error, BatchRefused):
        found = tuple(one.index for one in error.exceptions if isinstance(one, Refused))
        return found == call.indexes
    return isinstance(first, Refused) and call.names(first)


def describe(error: Exception) -> str:
    first = error.exceptions[0] if isinstance(error, BatchRefused) else error
    field = f" for {first.field!r}" if isinstance(first, Refused) else ""
    return f"{type(error).__name__}{field}"


def expected(call: BadCall) -> str:
    if call.is_bad_action:
        return "the result refused"
    return f"{call.error.__name__} for the field"


def valid_arguments(lease: str, fence: int, revision: int, held: ExportRecord) -> dict[str, dict[str, Any]]:
    """Return valid arguments by name, for the key "", and for each verb that needs others.

    Each field of the value objects is set, so that a row can replace it. In a list, a row replaces the last
    item: a storage that writes the first one before it has checked the last is found.
    """
    retention = OutcomeRetention(completed=1, failed=1, cancelled=1, keep_payload=("failed",))
    data = JobData(
        payload=b"1", attributes={"a": b"1"}, priority=1, overrides=full_overrides(0), retention=retention
    )
    new = NewJob(id="new", data=data, run_at=NOW)
    follow_up = FollowUp(queue="q", job=new, on_conflict=Reject())
    error = Error(type="E", message="m", traceback="t", cause=Error(type="C"))
    complete = Complete(result=b"1", then=(follow_up,), retention=retention)
    lost = Settlement(id="seen", fence=1, action=complete)
    common: dict[str, Any] = {
        "queue": "q", "queues": ["q", "q"], "ids": ["seen", "seen"], "id": "handed", "lease": lease,
        "fence": fence, "revision": revision, "limit": 1, "parts": 2, "ttl": 2 * TTL, "holder": "kit",
        "progress": b"1", "memo": b"m", "running": False, "state": "waiting", "timeout": 0.0, "for_": "ids",
        "since": {"q": "1"},
        "requests": [EnqueueRequest(job=new, request_key="k")] * 2,
        "settlements": [lost, Settlement(id="held", fence=fence, action=complete)],
        "end": complete, "records": [full_record(held, data, error)] * 2, "claim_id": "kit", "now": NOW,
        "patch": JobPatch(
            attributes={"a": b"1"}, payload=b"1", run_at=NOW, priority=1, retention=retention, lease=5
        ),
    }  # fmt: skip
    return {
        "": common,
        "claim_blocking_any": {**common, "queues": ["q", "r"]},
        "serve": {**common, "steps": [QueueStep("new"), QueueStep("q", common["settlements"], 1)]},
        **{name: {**common, **verb.valid} for name, verb in VERBS.items() if verb.valid},
    }


def full_record(held: ExportRecord, data: JobData, error: Error) -> ExportRecord:
    """Return the record of a new id that has every part."""
    assert held.slot.current is not None  # noqa: S101 - it was claimed
    current = replace(held.slot.current, id="new", data=data, error=error)
    successor = Successor(
        data=data, replaces=True, run_at=NOW, lo=None, hi=None, resets=True, enqueued_at=NOW, seq=5,
        first=current.revision + 1, revision=current.revision + 1,
    )  # fmt: skip
    outcome = Outcome(
        kind="failed", fence=1, first=1, revision=1, ended_at=NOW, expires_at=None, result=b"1", error=error,
        data=data,
    )  # fmt: skip
    return ExportRecord(id="new", slot=Slot(current, successor, outcome, ((1, 2),)))
