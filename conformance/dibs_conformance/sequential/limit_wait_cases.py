"""The changes that end a wait for work in a queue with limits (contract 3, Wake-ups).

Before each wait, a claim has taken what the limits admit, and one job waits for a later start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dibs.model.job import JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    HandOff,
    Release,
    RetryLater,
    SettingsPatch,
    StartRate,
)
from dibs.storage.protocol import Storage
from dibs_conformance.sequential.wait_cases import (
    FAILED,
    LONG,
    SHORT,
    SOON,
    Prepared,
    WaitCase,
    configures,
    drop,
    nothing,
    reap,
    settles,
)

#: One start in a minute, and one start in a time that passes during a wait.
NEVER_AGAIN: Final = StartRate(1, LONG)
SOON_AGAIN: Final = StartRate(1, SOON)


async def start_one(
    storage: Storage, state: Prepared, ttl: int = LONG, delay: int | None = None, **limits: Any
) -> None:
    """Set limits, enqueue jobs `a` and `b` of one key, and claim `a`."""
    await storage.configure(state.queue, SettingsPatch(**limits))
    data = JobData(key="k")
    jobs = [NewJob(id="a", data=data), NewJob(id="b", data=data, delay=delay)]
    await storage.enqueue(state.queue, [EnqueueRequest(job=job) for job in jobs])
    state.lease = (await storage.grant([state.queue], ttl, "kit")).lease
    taken = (await storage.claim(state.queue, state.lease, 10)).jobs
    state.fences = {job.id: job.run.fence for job in taken if job.run is not None}
    state.revisions = {job.id: job.revision for job in taken}


def starts_one(**limits: Any) -> Callable[[Storage, Prepared], Awaitable[Any]]:
    return lambda storage, state: start_one(storage, state, **limits)


async def fill_shortly(storage: Storage, state: Prepared) -> None:
    """Fill a key under a lease, and pass the end of the lease."""
    await start_one(storage, state, ttl=200, per_key=1)
    while (await storage.renew([state.queue], state.lease, SHORT))[state.queue].alive:
        pass


async def forget_the_run(storage: Storage, state: Prepared) -> None:
    await storage.forget(state.queue, ["a"])


async def move_to_another_key(storage: Storage, state: Prepared) -> None:
    """Update the waiting job `b` with another key."""
    job = NewJob(id="b", data=JobData(key="m"))
    await storage.enqueue(state.queue, [EnqueueRequest(job=job)])


full = starts_one(per_key=1)
LIMIT_CASES: Final = (
    WaitCase("the end of a run of a full key", "work", full, settles(Complete())),
    WaitCase("the failure of a run of a full key", "work", full, settles(FAILED)),
    WaitCase("the end of a cancelled run of a full key", "work", full, settles(Cancelled())),
    WaitCase("hand-off of a run of a full key", "work", full, settles(HandOff())),
    WaitCase("a later retry of a run of a full key", "work", full, settles(RetryLater(delay=LONG))),
    WaitCase("a later release of a run of a full key", "work", full, settles(Release(delay=LONG))),
    WaitCase("reap of a run of a full key", "work", fill_shortly, reap),
    WaitCase("drop of a run of a full key", "work", full, drop),
    WaitCase("forget of a run of a full key", "work", full, forget_the_run),
    WaitCase(
        "the end of a run before a scheduled job",
        "work",
        starts_one(per_key=1, delay=LONG),
        settles(Complete()),
    ),
    WaitCase("an update with another key", "work", full, move_to_another_key),
    WaitCase("a higher per_key", "work", full, configures(per_key=2)),
    WaitCase("the end of per_key", "work", full, configures(per_key=None)),
    WaitCase("a change of rate", "work", starts_one(rate=NEVER_AGAIN), configures(rate=StartRate(2, LONG))),
    WaitCase("the end of rate", "work", starts_one(rate=NEVER_AGAIN), configures(rate=None)),
    WaitCase("the end of key_rate", "work", starts_one(key_rate=NEVER_AGAIN), configures(key_rate=None)),
    WaitCase("a start that the rate allows", "work", starts_one(rate=SOON_AGAIN), nothing),
    WaitCase("a start that the key_rate allows", "work", starts_one(key_rate=SOON_AGAIN), nothing),
)
