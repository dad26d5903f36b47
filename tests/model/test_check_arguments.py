"""Bad arguments of every verb: a real storage refuses them before it writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace as changed

from dibs.errors import Refused
from dibs.model.job import (
    EMPTY,
    ActiveRun,
    Error,
    Job,
    JobData,
    NewJob,
    Outcome,
    OutcomeRetention,
    Slot,
    Successor,
)
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    Settlement,
)
from dibs.model.results import ExportRecord
from dibs.storage.memory import MemoryStorage

BAD: Any = "bad"
HALF: Any = 0.5
NONE: Any = None
NOTHING = OutcomeRetention(completed=-1)
JOB = Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1)
RUN = ActiveRun(fence=2, lease="l", holder="h", claimed_at=0)
BESIDE = Successor(
    data=JobData(),
    replaces=True,
    run_at=0,
    lo=None,
    hi=None,
    resets=True,
    enqueued_at=0,
    seq=3,
    first=3,
    revision=3,
)
ENDED = Outcome(kind="failed", fence=2, first=1, revision=1, ended_at=0, expires_at=None)

Call = Callable[[MemoryStorage], Awaitable[object]]


def imports(slot: Slot, id: str = "a") -> Call:
    return lambda s: s.import_("q", [ExportRecord(id=id, slot=slot)])


REFUSED: dict[str, tuple[str, Call]] = {
    "claim of nothing": ("limit", lambda s: s.claim("q", "l", 0)),
    "claim of less than nothing": ("limit", lambda s: s.claim("q", "l", -1)),
    "claim of True": ("limit", lambda s: s.claim("q", "l", True)),  # noqa: FBT003
    "claim from no queue": ("queue", lambda s: s.claim("", "l", 1)),
    "turn of nothing": ("limit", lambda s: s.settle_and_claim("q", [], "l", 0)),
    "settle in no queue": ("queue", lambda s: s.settle("a\0", [])),
    "reap of less than nothing": ("limit", lambda s: s.reap("q", -1)),
    "drop of less than nothing": ("limit", lambda s: s.drop(["q"], "l", -1)),
    "prune of nothing": ("limit", lambda s: s.prune("q", 0)),
    "a page of nothing": ("limit", lambda s: s.list("q", "waiting", limit=0)),
    "a page of half a job": ("limit", lambda s: s.list("q", "waiting", limit=HALF)),
    "an export of nothing": ("limit", lambda s: s.export("q", limit=0)),
    "no parts": ("parts", lambda s: s.split("q", 0)),
    "1,001 parts": ("parts", lambda s: s.split("q", 1001)),
    "parts of half a job": ("parts", lambda s: s.split("q", HALF)),
    "parts of no queue": ("queue", lambda s: s.split("", 2)),
    "parts of a state nobody knows": ("state", lambda s: s.split("q", 2, state=BAD)),
    "a state nobody knows": ("state", lambda s: s.list("q", BAD)),
    "a wait for who knows what": ("for_", lambda s: s.wait(["q"], for_=BAD, timeout=0)),
    "events of nothing": ("limit", lambda s: s.events("q", limit=0)),
    "a lease that is over at once": ("ttl", lambda s: s.grant(["q"], 0, "h")),
    "a lease from long ago": ("ttl", lambda s: s.grant(["q"], -5, "h")),
    "a lease for ever": ("ttl", lambda s: s.grant(["q"], 2**53, "h")),
    "a renewal into the past": ("ttl", lambda s: s.renew(["q"], "l", -5)),
    "a name taken for its letters": ("queues", lambda s: s.grant("queue", 1, "h")),
    "counts of letters": ("queues", lambda s: s.counts("queue")),
    "a wait for letters": ("queues", lambda s: s.wait("queue", timeout=0)),
    "a wait for no queue": ("queue", lambda s: s.wait([""], timeout=0)),
    "a wait for an id's letters": ("ids", lambda s: s.wait(["q"], for_="ids", ids="abc", timeout=0)),
    "a holder no log can keep": ("holder", lambda s: s.grant(["q"], 1, "\ud800")),
    "a holder without end": ("holder", lambda s: s.grant(["q"], 1, "h" * 513)),
    "cancel of letters": ("ids", lambda s: s.cancel("q", "abc")),
    "forget of letters": ("ids", lambda s: s.forget("q", "abc")),
    "get of letters": ("ids", lambda s: s.get("q", "abc")),
    "retry of letters": ("ids", lambda s: s.retry_failed("q", "abc")),
    "a queue that is no text": ("queue", lambda s: s.reap(7, 1)),  # type: ignore[arg-type]
    "a time before time": ("now", lambda s: s.reap("q", 1, now=-1)),
    "a time of 2**53": ("now", lambda s: s.reap("q", 1, now=2**53)),
    "a time that is a float": ("now", lambda s: s.reap("q", 1, now=BAD)),
    "no progress": ("progress", lambda s: s.report("q", "a", 1, b"")),
    "progress that is NaN": ("progress", lambda s: s.report("q", "a", 1, b"NaN")),
    "progress of 1 MiB and 1": ("progress", lambda s: s.report("q", "a", 1, b"1" * (2**20 + 1))),
    "a report of neither": ("progress", lambda s: s.report("q", "a", 1)),
    "a memo that is text": ("memo", lambda s: s.report("q", "a", 1, None, BAD)),
    "a memo of 1 MiB and 1": ("memo", lambda s: s.report("q", "a", 1, b"1", bytes(2**20 + 1))),
    "a reason that is text": ("error", lambda s: s.finish("q", "a", Cancelled(error=BAD), 1)),
    "runs of a key below 1": ("per_key", lambda s: s.configure("q", SettingsPatch(per_key=0))),
    "a rate that is a number": ("rate", lambda s: s.configure("q", SettingsPatch(rate=HALF))),
    "a log of results beyond the limit": (
        "log_results",
        lambda s: s.configure("q", SettingsPatch(log_results=4097)),
    ),
    "a result of 1 MiB and 1": ("result", lambda s: s.finish("q", "a", Complete(result=bytes(2**20 + 1)), 1)),
    "an end kept for less than nothing": (
        "retention.completed",
        lambda s: s.finish("q", "a", Cancelled(retention=NOTHING), 1),
    ),
    "a priority of None": (
        "priority",
        lambda s: s.amend("q", "a", JobPatch(priority=NONE)),
    ),
    "a run_at of None": ("run_at", lambda s: s.amend("q", "a", JobPatch(run_at=NONE))),
    "a delay into the past": ("delay", lambda s: s.amend("q", "a", JobPatch(delay=-1))),
    "two times": ("run_at", lambda s: s.amend("q", "a", JobPatch(delay=1, run_at=1))),
    "a payload that is text": ("payload", lambda s: s.amend("q", "a", JobPatch(payload=BAD))),
    "attributes that are no JSON": (
        "attributes['x']",
        lambda s: s.amend("q", "a", JobPatch(attributes={"x": b"{"})),
    ),
    "retention amended to less than nothing": (
        "retention.completed",
        lambda s: s.amend("q", "a", JobPatch(retention=NOTHING)),
    ),
    "-1 at once": ("max_active", lambda s: s.configure("q", SettingsPatch(max_active=-1))),
    "half paused": ("paused", lambda s: s.configure("q", SettingsPatch(paused=BAD))),
    "a level nobody knows": ("log_level", lambda s: s.configure("q", SettingsPatch(log_level=BAD))),
    "a log of less than nothing": ("log_bytes", lambda s: s.configure("q", SettingsPatch(log_bytes=-1))),
    "a log from the future": ("log_age", lambda s: s.configure("q", SettingsPatch(log_age=-1))),
    "keys from the future": (
        "request_key_age",
        lambda s: s.configure("q", SettingsPatch(request_key_age=-1)),
    ),
    "a queue that keeps less than nothing": (
        "retention.completed",
        lambda s: s.configure("q", SettingsPatch(retention=NOTHING)),
    ),
    "a record of another id": ("current.id", imports(Slot(JOB), "b")),
    "a record without id": ("id", imports(EMPTY, "")),
    "a record of a number no clock has reached": ("current.seq", imports(Slot(changed(JOB, seq=2**53 + 1)))),
    "a record whose range ends before it begins": (
        "current.revision",
        imports(Slot(changed(JOB, revision=0))),
    ),
    "a record of a run that was never claimed": ("current.attempts", imports(Slot(changed(JOB, run=RUN)))),
    "a record of a successor of nothing": ("successor", imports(Slot(JOB, BESIDE))),
    "a record of a memo beyond the limit": (
        "memo",
        imports(Slot(changed(JOB, data=JobData(memo=bytes(2**20 + 1))))),
    ),
    "a record of a key beyond the limit": ("key", imports(Slot(changed(JOB, data=JobData(key="k" * 129))))),
    "a record of attributes without JSON": (
        "attributes['x']",
        imports(Slot(None, None, changed(ENDED, attributes={"x": b"{"}))),
    ),
    "a record of an outcome of no time": (
        "outcome.expires_at",
        imports(Slot(None, None, changed(ENDED, expires_at=-1))),
    ),
    "a record with a priority of 1001": (
        "priority",
        imports(Slot(changed(JOB, data=JobData(priority=1001)))),
    ),
    "a record that dropped nothing": ("dropped", imports(Slot(JOB, None, None, ((5, 4),)))),
}


@pytest.fixture
async def storage() -> AsyncIterator[MemoryStorage]:
    async with MemoryStorage(clock="manual") as opened:
        yield opened


@pytest.mark.parametrize(("field", "call"), REFUSED.values(), ids=REFUSED)
async def test_it_is_refused_and_nothing_happened(storage: MemoryStorage, field: str, call: Call) -> None:
    """The refusal names the field, and the storage creates no queue."""
    with pytest.raises(Refused) as caught:
        await call(storage)

    assert field == caught.value.field
    assert (
        field.rpartition(".")[2].partition("[")[0] in str(caught.value) or caught.value.field == "current.id"
    )
    assert [] == await storage.queues()


@pytest.mark.parametrize(
    "slot", [Slot(JOB), Slot(changed(JOB, attempts=1, run=RUN), BESIDE, ENDED, ((4, 4),))]
)
async def test_what_a_storage_exports_is_taken(storage: MemoryStorage, slot: Slot) -> None:
    assert ["imported"] == await storage.import_("q", [ExportRecord(id="a", slot=slot)])


SETTLEMENTS = {
    "result": Complete(result=bytes(2**20 + 1)),
    "retention.completed": Fail(error=Error(type="E"), retention=NOTHING),
    "cause": RetryLater(cause=BAD),
    "delay": RetryLater(delay=-1),
    "run_at": RetryLater(delay=1, run_at=1),
    "error": Cancelled(error=BAD),
}
#: Releases break the same limits as retries.
RELEASES = {"delay": Release(delay=-1), "run_at": Release(delay=1, run_at=1)}


@pytest.mark.parametrize(("word", "action"), [*SETTLEMENTS.items(), *RELEASES.items()])
async def test_a_settlement_over_a_limit_is_refused_alone(
    storage: MemoryStorage, word: str, action: Any
) -> None:
    """Only the bad settlement is refused: the other one is applied, and the refused run stays active."""
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in "ab"], now=10)
    lease = (await storage.grant(["q"], 1000, "h", now=10)).lease
    one, two = (await storage.claim("q", lease, 2, now=10)).jobs
    assert one.run is not None
    assert two.run is not None

    refused, done = await storage.settle(
        "q",
        [
            Settlement(id=one.id, fence=one.run.fence, action=action),
            Settlement(id=two.id, fence=two.run.fence, action=Complete()),
        ],
    )

    assert ("refused", "done") == (refused.status, done.status)
    assert word.rpartition(".")[2] in refused.reason
    assert [Slot(one)] == await storage.get("q", [one.id])
