"""Redis keeps the writes of a script that fails half-way, so our scripts check types before they write."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from dibs.errors import StorageError
from dibs.model.job import Error, Job, JobData, NewJob, Outcome, Slot
from dibs.model.request_columns import RequestColumns
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    Settlement,
    Update,
)
from dibs.model.results import ExportRecord
from dibs.storage.redis import RedisStorage
from dibs_conformance.servers import RedisServer

NAMES = (
    "waiting", "active", "successors", "outcomes", "dropped", "meta", "priorities", "due:0", "line:0",
    "line:5", "leases", "lease_ends", "away", "asked", "completed", "failed", "cancelled", "keys", "key_ends",
    "log", "fail:waiting", "fail:due:0", "fail:meta", "fail:priorities",
)  # fmt: skip

Act = Callable[[RedisStorage, str, dict[str, int]], Awaitable[object]]


def job(id: str, **more: int) -> EnqueueRequest:
    data = JobData(payload=b"x", priority=more.pop("priority", 0))
    return EnqueueRequest(job=NewJob(id=id, data=data, **more), request_key=f"key-{id}")


def settled(id: str, how: object) -> Act:
    return lambda s, _, fences: s.settle("q", [Settlement(id=id, fence=fences[id], action=how)])  # type: ignore[arg-type]


#: A time after the end of the lease, for a manual clock that begins at 0.
EXPIRED = 10_000_000
MANUAL_CLOCK = {"reap"}

TIMES: dict[str, Any] = {"run_at": 1, "enqueued_at": 1, "first": 2, "revision": 2}
RECORDS = [
    ExportRecord(
        id="waiting", slot=Slot(current=Job(id="waiting", data=JobData(payload=b"x"), seq=2, **TIMES))
    ),
    ExportRecord(
        id="over", slot=Slot(outcome=Outcome(kind="completed", fence=3, ended_at=1, expires_at=None, **TIMES))
    ),
]

COLUMNS = RequestColumns(ids=["new"], payloads=[b"1"], members=[b"m" * 16], priorities=[5])

ACTS: dict[str, Act] = {
    "enqueue": lambda s, *_: s.enqueue("q", [job("new"), job("later", delay=9), job("a", priority=5)]),
    "enqueue a batch": lambda s, *_: s.enqueue_batch("q", "set", 1, COLUMNS),
    "enqueue blocked": lambda s, *_: s.enqueue(
        "q", [EnqueueRequest(job=NewJob(id="run"), on_conflict=Update(data=False))]
    ),
    "claim": lambda s, lease, _: s.claim("q", lease, 2),
    "complete": settled("run", Complete(result=b"1", then=(FollowUp(queue="q", job=NewJob(id="next")),))),
    "fail": settled("run", Fail(error=Error(type="E"))),
    "retry": settled("run", RetryLater(delay=3)),
    "release": settled("run", Release()),
    "hand off": settled("run", HandOff()),
    "cancel": lambda s, *_: s.cancel("q", ["a", "blocked"], running=True),
    "amend": lambda s, *_: s.amend("q", "a", JobPatch(priority=5)),
    "forget": lambda s, *_: s.forget("q", ["a", "run", "ended"]),
    "retry failed": lambda s, *_: s.retry_failed("q", ["broken"]),
    "configure": lambda s, *_: s.configure("q", SettingsPatch(paused=True)),
    "renew": lambda s, lease, _: s.renew(["q"], lease, 90_000),
    "drop": lambda s, lease, _: s.drop(["q"], lease, 10),
    "prune": lambda s, *_: s.prune("q", 10),
    "settle_and_claim": lambda s, lease, fences: s.settle_and_claim(
        "q", [Settlement(id="run", fence=fences["run"], action=Complete(result=b"1"))], lease, 2
    ),
    "finish": lambda s, _, fences: s.finish("q", "away", Complete(result=b"1"), fences["away's revision"]),
    "reap": lambda s, *_: s.reap("q", 10, now=EXPIRED),
    "report": lambda s, _, fences: s.report("q", "run", fences["run"], b"0.5"),
    "import": lambda s, *_: s.import_("q", RECORDS),
    "grant": lambda s, *_: s.grant(["q"], 60_000, "you"),
}


async def prepare(storage: RedisStorage) -> tuple[str, dict[str, int]]:
    """Make a queue with a job in each state; return the lease and the fences."""
    await storage.configure("q", SettingsPatch(log_level="all"))
    lease = (await storage.grant(["q"], 60_000, "me")).lease
    await storage.enqueue("q", [job(id) for id in ("run", "blocked", "ended", "broken", "away", "a", "b")])
    taken = (await storage.claim("q", lease, 5)).jobs
    fences = {one.id: one.run.fence for one in taken if one.run is not None}
    fences["away's revision"] = taken[4].revision
    await storage.settle(
        "q",
        [
            Settlement(id="ended", fence=fences["ended"], action=Complete()),
            Settlement(id="broken", fence=fences["broken"], action=Fail(error=Error(type="E"))),
            Settlement(id="away", fence=fences["away"], action=HandOff()),
        ],
    )
    await storage.enqueue("q", [job("blocked"), job("c", delay=60_000), job("d", priority=5, delay=1)])
    await storage.configure("q", SettingsPatch(fail_handler=True))
    return lease, fences


def picture(server: RedisServer, prefix: str) -> dict[str, str]:
    keys = sorted(server.execute("KEYS", f"{prefix}:*"))
    return {key: server.execute("DUMP", key) for key in keys}


@pytest.mark.parametrize("act", ACTS)
async def test_a_script_that_finds_a_wrong_type_changes_no_key(
    act: str, opened: Callable[..., RedisStorage], redis_server: RedisServer, prefix: str
) -> None:
    refused = [
        name for name in NAMES if await is_refused(act, name, opened, redis_server, f"{prefix}.{name}")
    ]

    assert refused, "no wrong type was met: this act proves nothing"


async def is_refused(
    act: str, name: str, opened: Callable[..., RedisStorage], server: RedisServer, prefix: str
) -> bool:
    """Return whether the act met the wrong type; then it must have left all keys unchanged."""
    async with opened(prefix=prefix, clock="manual" if act in MANUAL_CLOCK else "system") as storage:
        lease, fences = await prepare(storage)
        # The registry of names is written before the script.
        await storage._register("q", "q!fail")
        server.execute("SET", f"{prefix}:{{q}}:{name}", "somebody else's")
        before = picture(server, prefix)
        try:
            await ACTS[act](storage, lease, fences)
        except StorageError:
            assert before == picture(server, prefix), f"{act} wrote something before it met {name}"
            return True
        return False


async def test_a_failed_claim_does_not_hide_the_settlements_before_it(
    storage: RedisStorage, redis_server: RedisServer, prefix: str
) -> None:
    lease, fences = await prepare(storage)
    redis_server.execute("DEL", f"{prefix}:{{q}}:priorities")
    redis_server.execute("SET", f"{prefix}:{{q}}:priorities", "somebody else's")
    turned = await storage.settle_and_claim(
        "q", [Settlement(id="run", fence=fences["run"], action=Complete())], lease, 2
    )

    assert ["done"] == [one.status for one in turned.settled]
    assert () == turned.claim.jobs
    with pytest.raises(StorageError, match="another Redis type"):
        await storage.claim("q", lease, 2)
