"""Probe of the optional method of `dibs.storage.direct_settle`, compared with the verb settle_and_claim.

Storages send such calls under the system clock only, so the random examples do not reach them. A storage
without the method gets the verb twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from attrs import frozen

from dibs.errors import DibsError
from dibs.model.job import Error, Job, JobData, NewJob, Outcome, OutcomeRetention
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs.model.results import SettleAndClaimResult
from dibs.storage.direct_settle import with_direct_settle
from dibs.storage.protocol import Storage

TTL: Final = 60_000
#: Seconds until a call or a message has surely arrived.
WAIT_SECONDS: Final = 3.0
KEPT: Final = OutcomeRetention(completed=TTL, failed=TTL, cancelled=TTL)
IDS: Final = ("a", "b", "c", "next")

Prepare = Callable[[Storage, str], Awaitable[Any]]


async def _nothing(storage: Storage, queue: str) -> None: ...


async def _enqueue_again(storage: Storage, queue: str) -> None:
    await storage.enqueue(queue, [_request("a", b"2")])


async def _pause(storage: Storage, queue: str) -> None:
    await storage.configure(queue, SettingsPatch(paused=True))


async def _cancel_next(storage: Storage, queue: str) -> None:
    await storage.cancel(queue, ["b"])


_DONE: Final = Complete()


@frozen
class Case:
    """The end of the run of the id `a`, and a claim, while `b` and `c` wait."""

    title: str
    action: SettleAction = _DONE
    prepare: Prepare = _nothing
    limit: int = 1
    #: True if the settlement has the fence of another run.
    late: bool = False
    #: True if the completion enqueues a job into the same queue.
    follows: bool = False


CASES: Final = (
    Case("a completion"),
    Case("a completion with a result", Complete(result=b"7"), limit=5),
    Case("a failure", Fail(error=Error(type="E", message="no"))),
    Case("a retry", RetryLater(delay=0), limit=5),
    Case("a release", Release(), limit=5),
    Case("a late completion", late=True),
    Case("the end of an id with a blocked job", prepare=_enqueue_again, limit=5),
    Case("an end in a paused queue", prepare=_pause),
    Case("a claim behind a cancelled job", prepare=_cancel_next),
    Case("a completion with a follow-up", limit=5, follows=True),
)


async def check_direct_settle(storage: Storage) -> tuple[int, list[str]]:
    """Return the number of cases, and a message for each one in which the two differ."""
    wrong: list[str] = []
    for number, case in enumerate(CASES):
        try:
            expected = await _play(storage, f"verb-{number}", case, by_verb)
            found = await _play(storage, f"direct-{number}", case, directly)
        except DibsError as error:
            wrong.append(f"{case.title} raised {error!r:.300}")
        else:
            if expected != found:
                wrong.append(f"{case.title} by start_settle_and_claim: {found!r:.600}, not {expected!r:.600}")
    return len(CASES), wrong


Send = Callable[[Storage, str, Sequence[Settlement], str, int], Awaitable[SettleAndClaimResult]]


async def by_verb(
    storage: Storage, queue: str, settlements: Sequence[Settlement], lease: str, limit: int
) -> SettleAndClaimResult:
    return await storage.settle_and_claim(queue, settlements, lease, limit)


async def directly(
    storage: Storage, queue: str, settlements: Sequence[Settlement], lease: str, limit: int
) -> SettleAndClaimResult:
    """Send the call without a task, or by the verb if the storage sends nothing."""
    direct = with_direct_settle(storage)
    ended: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    if direct is None or not direct.start_settle_and_claim(
        queue, settlements, lease, limit, ended.set_result
    ):
        return await by_verb(storage, queue, settlements, lease, limit)
    result = await asyncio.wait_for(ended, WAIT_SECONDS)
    if isinstance(result, Exception):
        raise result
    if result is None:
        return await by_verb(storage, queue, settlements, lease, limit)
    answer: SettleAndClaimResult = result
    return answer


async def _play(storage: Storage, queue: str, case: Case, send: Send) -> Any:
    """Run a case in a new queue. Return the results and the stored jobs, without numbers and times."""
    await storage.configure(queue, SettingsPatch(retention=KEPT))
    lease = (await storage.grant([queue], TTL, "kit")).lease
    await storage.enqueue(queue, [_request(id) for id in ("a", "b", "c")])
    [job] = (await storage.settle_and_claim(queue, [], lease, 1)).claim.jobs
    await case.prepare(storage, queue)
    fence = (job.run.fence if job.run else 0) - case.late
    then = FollowUp(queue=queue, job=NewJob(id="next", data=JobData(payload=b"n")))
    action = Complete(then=(then,)) if case.follows else case.action
    result = await send(storage, queue, [Settlement(id="a", fence=fence, action=action)], lease, case.limit)
    slots = await storage.get(queue, IDS)
    return (
        [one.status for one in result.settled],
        [_describe(one) for one in result.claim.jobs],
        [(_describe(slot.current), _end_of(slot.outcome), slot.successor is None) for slot in slots],
    )


def _describe(job: Job | None) -> Any:
    return None if job is None else (job.id, job.data, job.attempts, job.retries, job.run is None, job.error)


def _end_of(outcome: Outcome | None) -> Any:
    return None if outcome is None else (outcome.kind, outcome.result, outcome.error, outcome.attempts)


def _request(id: str, payload: bytes = b"0") -> EnqueueRequest:
    return EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload)))
