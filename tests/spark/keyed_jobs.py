"""Jobs with keys, flows and memos: in each state, with each kind of end, and their events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.model.wakeup import FLOW_ATTRIBUTE
from dibs.storage.protocol import Storage

IN_FLOW: Final = {FLOW_ATTRIBUTE: b'"flow 1"'}
MEMO: Final = b"12345"
RETRY: Final = RetryLater(delay=10**7)

#: Key, flow and size of the memo by id and state, as the table `jobs` has them. The queue is `limited`.
JOBS: Final = {
    ("again", "waiting"): ("bob", None, 5),
    ("changed", "waiting"): ("eve", None, None),
    ("busy", "active"): ("ada", "flow 1", 5),
    ("busy", "blocked"): ("eve", None, None),
}
#: The same by id, as the table `outcomes` has them.
OUTCOMES: Final = {
    "failed": ("ada", "flow 1", 5),
    "done": (None, "flow 1", None),
    "kept": ("bob", None, None),
}
#: Key and flow by queue and id, as the tables `events` and `runs` of a warehouse have them.
RUNS: Final = {
    ("limited", "failed"): ("ada", "flow 1"),
    # The outcome of a completed job keeps the attributes, and only with `keep_payload` the key.
    ("limited", "done"): (None, "flow 1"),
    ("limited", "kept"): ("bob", None),
    ("limited", "again"): ("bob", None),
    # A later enqueue has replaced the data.
    ("limited", "changed"): (None, None),
    # The ids of nodes are read in each queue, and other ids only in queues with a limit by key.
    ("nodes", "flow 1/h0abc/0"): (None, "flow 1"),
    ("nodes", "a/b/1"): (None, None),
    ("nodes", "shared"): (None, None),
}


async def fill_keyed(storage: Storage) -> None:
    """Make the jobs of JOBS, OUTCOMES and RUNS."""
    await storage.configure("limited", SettingsPatch(per_key=10))
    data = {
        "failed": JobData(payload=b"1", key="ada", attributes=IN_FLOW),
        "done": JobData(key="ada", attributes=IN_FLOW),
        "kept": JobData(key="bob", retention=OutcomeRetention(keep_payload=("completed",))),
        "again": JobData(key="bob"),
        "changed": JobData(key="bob"),
        "busy": JobData(key="ada", attributes=IN_FLOW),
    }
    ends: dict[str, SettleAction] = {
        "failed": Fail(error=Error(type="ValueError")),
        "done": Complete(),
        "kept": Complete(),
        "again": RETRY,
        "changed": RETRY,
    }
    await run_jobs(storage, "limited", data, ends, with_memo=("failed", "again", "busy"))
    await storage.enqueue("limited", requests({"changed": JobData(key="eve"), "busy": JobData(key="eve")}))
    nodes = {
        "flow 1/h0abc/0": JobData(attributes=IN_FLOW),
        "a/b/1": JobData(key="ada"),
        "shared": JobData(attributes=IN_FLOW),
    }
    await run_jobs(storage, "nodes", nodes, dict.fromkeys(nodes, Complete()))


async def run_jobs(
    storage: Storage,
    queue: str,
    data: Mapping[str, JobData],
    ends: Mapping[str, SettleAction],
    with_memo: tuple[str, ...] = (),
) -> None:
    """Enqueue jobs and claim them, store memos, and end those in `ends`."""
    await storage.enqueue(queue, requests(data))
    lease = (await storage.grant([queue], 600_000, "a test")).lease
    fences = {job.id: job.run.fence for job in (await storage.claim(queue, lease, 10)).jobs if job.run}
    for id in with_memo:
        await storage.report(queue, id, fences[id], memo=MEMO)
    settlements = [Settlement(id=id, fence=fences[id], action=end) for id, end in ends.items()]
    assert {"done", "returned"} >= {result.status for result in await storage.settle(queue, settlements)}


def requests(data: Mapping[str, JobData]) -> list[EnqueueRequest]:
    return [EnqueueRequest(job=NewJob(id=id, data=each)) for id, each in data.items()]
