"""The changes that end a wait (contract 3, Wake-ups): for work, for events and for ids.

Each case prepares its own queue. A client then waits, and the same or another client makes the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from attrs import define, field, frozen

from dibs.model.job import Error, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.storage.protocol import Storage, Watch

#: Times to live of leases, in ms: one that outlives a test, and one that ends during its preparation.
LONG: Final = 60_000
SHORT: Final = 1
#: The delay of a job that falls due during a wait, in ms.
SOON: Final = 300


@define
class Prepared:
    """The state of one queue before its wait. It is sent to the process that makes the change."""

    queue: str
    lease: str = ""
    #: The fences and revisions of the claimed jobs, by id.
    fences: dict[str, int] = field(factory=dict)
    revisions: dict[str, int] = field(factory=dict)


@frozen
class WaitCase:
    """A change that ends a wait: its name, what is waited for, the preparation and the change."""

    name: str
    watch: Watch
    prepare: Callable[[Storage, Prepared], Awaitable[Any]]
    change: Callable[[Storage, Prepared], Awaitable[Any]]
    #: False for a wait for progress that names no id: it waits for any id of the queue.
    names_id: bool = True

    @property
    def ids(self) -> list[str]:
        return ["a"] if self.watch in ("ids", "progress") and self.names_id else []


async def enqueue(storage: Storage, state: Prepared, id: str = "a", delay: int | None = None) -> None:
    await storage.enqueue(state.queue, [EnqueueRequest(job=NewJob(id=id, delay=delay))])


async def claim(storage: Storage, state: Prepared, ttl: int = LONG) -> None:
    """Enqueue job `a` and claim it."""
    await enqueue(storage, state)
    state.lease = (await storage.grant([state.queue], ttl, "kit")).lease
    jobs = (await storage.claim(state.queue, state.lease, 1)).jobs
    state.fences = {job.id: job.run.fence for job in jobs if job.run is not None}
    state.revisions = {job.id: job.revision for job in jobs}


async def claim_shortly(storage: Storage, state: Prepared) -> None:
    """Claim job `a` under a lease, and let the lease expire."""
    await claim(storage, state, 200)
    while (await storage.renew([state.queue], state.lease, SHORT))[state.queue].alive:
        pass


async def claim_and_block(storage: Storage, state: Prepared) -> None:
    await claim(storage, state)
    await enqueue(storage, state)


async def claim_at_limit(storage: Storage, state: Prepared) -> None:
    """Claim job `a`; job `b` waits, because only one job of the queue may be active."""
    await storage.configure(state.queue, SettingsPatch(max_active=1))
    await claim(storage, state)
    await enqueue(storage, state, "b")


async def pause(storage: Storage, state: Prepared) -> None:
    await storage.configure(state.queue, SettingsPatch(paused=True))
    await enqueue(storage, state)


async def hand_off(storage: Storage, state: Prepared) -> None:
    await claim(storage, state)
    await settle(storage, state, HandOff())


async def fail(storage: Storage, state: Prepared) -> None:
    await claim(storage, state)
    await settle(storage, state, Fail(error=Error(type="E")))


async def claim_and_request_cancel(storage: Storage, state: Prepared) -> None:
    await claim(storage, state)
    await storage.cancel(state.queue, ["a"], running=True)


async def enqueue_later(storage: Storage, state: Prepared) -> None:
    await enqueue(storage, state, delay=LONG)


async def enqueue_soon(storage: Storage, state: Prepared) -> None:
    await enqueue(storage, state, delay=SOON)


async def log_all(storage: Storage, state: Prepared) -> None:
    await storage.configure(state.queue, SettingsPatch(log_level="all"))


async def log_all_and_claim(storage: Storage, state: Prepared) -> None:
    await log_all(storage, state)
    await claim(storage, state)


async def settle(storage: Storage, state: Prepared, action: SettleAction) -> None:
    await storage.settle(state.queue, [Settlement(id="a", fence=state.fences["a"], action=action)])


def settles(action: SettleAction) -> Callable[[Storage, Prepared], Awaitable[Any]]:
    return lambda storage, state: settle(storage, state, action)


def configures(**settings: Any) -> Callable[[Storage, Prepared], Awaitable[Any]]:
    return lambda storage, state: storage.configure(state.queue, SettingsPatch(**settings))


def cancels(*, running: bool = False) -> Callable[[Storage, Prepared], Awaitable[Any]]:
    return lambda storage, state: storage.cancel(state.queue, ["a"], running=running)


async def finish(storage: Storage, state: Prepared) -> None:
    await storage.finish(state.queue, "a", Complete(), state.revisions["a"])


async def drop(storage: Storage, state: Prepared) -> None:
    await storage.drop([state.queue], state.lease, 1)


async def reap(storage: Storage, state: Prepared) -> None:
    await storage.reap(state.queue, 1)


async def retry_failed(storage: Storage, state: Prepared) -> None:
    await storage.retry_failed(state.queue, ["a"])


async def amend_run_at(storage: Storage, state: Prepared) -> None:
    await storage.amend(state.queue, "a", JobPatch(delay=0))


async def report(storage: Storage, state: Prepared) -> None:
    await storage.report(state.queue, "a", state.fences["a"], b"0.5")


async def report_on_a_claim(storage: Storage, state: Prepared) -> None:
    """Claim job `a` and report progress once, so that the next report is another one."""
    await claim(storage, state)
    await report(storage, state)


async def nothing(storage: Storage, state: Prepared) -> None:
    """Change nothing: the wait ends by itself."""


FAILED: Final = Fail(error=Error(type="E"))
CASES: Final = (
    WaitCase("enqueue", "work", nothing, enqueue),
    WaitCase("retry", "work", claim, settles(RetryLater())),
    WaitCase("release", "work", claim, settles(Release())),
    WaitCase("reap", "work", claim_shortly, reap),
    WaitCase("drop", "work", claim, drop),
    WaitCase("resume", "work", pause, configures(paused=False)),
    WaitCase("configure max_active", "work", claim_at_limit, configures(max_active=2)),
    WaitCase("the end of a run at max_active", "work", claim_at_limit, settles(Complete())),
    WaitCase("hand-off of a run at max_active", "work", claim_at_limit, settles(HandOff())),
    WaitCase("the end of a run with a successor", "work", claim_and_block, settles(Complete())),
    WaitCase("retry_failed", "work", fail, retry_failed),
    WaitCase("amend run_at", "work", enqueue_later, amend_run_at),
    WaitCase("a due time", "work", enqueue_soon, nothing),
    WaitCase("enqueue", "events", log_all, enqueue),
    WaitCase("complete", "events", claim, settles(Complete())),
    WaitCase("retry", "events", claim, settles(RetryLater())),
    WaitCase("release", "events", claim, settles(Release())),
    WaitCase("reap", "events", claim_shortly, reap),
    WaitCase("drop", "events", claim, drop),
    WaitCase("cancel", "events", enqueue, cancels()),
    WaitCase("pause", "events", log_all, configures(paused=True)),
    WaitCase(
        "amend", "events", log_all_and_claim, lambda s, p: s.amend(p.queue, "a", JobPatch(attributes={}))
    ),
    WaitCase("complete", "ids", claim, settles(Complete())),
    WaitCase("fail", "ids", claim, settles(FAILED)),
    WaitCase("end as cancelled", "ids", claim, settles(Cancelled())),
    WaitCase("cancel of a waiting job", "ids", enqueue, cancels()),
    WaitCase("cancel of a successor", "ids", claim_and_block, cancels()),
    WaitCase("cancel of a handed-off run", "ids", hand_off, cancels(running=True)),
    WaitCase("finish", "ids", hand_off, finish),
    WaitCase("drop after a requested cancellation", "ids", claim_and_request_cancel, drop),
    WaitCase("report", "progress", claim, report),
    WaitCase("report of any id", "progress", claim, report, names_id=False),
    WaitCase("report after another", "progress", report_on_a_claim, report),
    WaitCase("report by a handed-off run", "progress", hand_off, report),
    WaitCase("the end of a run", "progress", claim, settles(Complete())),
    WaitCase("cancel of a waiting job", "progress", enqueue, cancels()),
)
