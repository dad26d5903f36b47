"""Fixed histories of update-only requests: on an empty id, in a waiting job, and in the list of a run."""

from __future__ import annotations

from collections.abc import Callable
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
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs_conformance.sequential.moving import export_in_parts
from dibs_conformance.sequential.walkthrough import FAILED, QUEUE, claim, enqueue, settle
from dibs_conformance.strategies import HOUR
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.events import Reader

#: Rules of update-only requests: MOVE changes run_at, RESET sets the counts to 0.
MOVE = Update(create=False)
RESET = Update(create=False, run_at="never", reset_counts=True)


def update(lockstep: Lockstep, rule: Update = MOVE, id: str = "a", **when: Any) -> int:
    """Enqueue one request with this rule. Return the last revision of its range."""
    [answer] = lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, **when), on_conflict=rule)])
    return answer.revision


def update_without_a_job(lockstep: Lockstep) -> None:
    """Send update-only requests to an id without a job, with and without an outcome, and with a key."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    keyed = EnqueueRequest(job=NewJob(id="a"), on_conflict=MOVE, request_key="k", want_outcome=True)
    lockstep.enqueue(QUEUE, [keyed, EnqueueRequest(job=NewJob(id="b")), keyed])
    enqueue(lockstep, "a")
    lockstep.enqueue(QUEUE, [keyed])
    for action in (Complete(result=b"1"), Fail(error=Error(type="Oops")), Cancelled()):
        for run in claim(lockstep, lease):
            settle(lockstep, run, action)
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a"), on_conflict=MOVE, want_outcome=True)])
        enqueue(lockstep, "a")
    batch = (("c", MOVE), ("c", Update()), ("c", RESET), ("c", MOVE))
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id), on_conflict=rule) for id, rule in batch])
    lockstep.counts([QUEUE])
    lockstep.known_queues()


def update_a_waiting_job(lockstep: Lockstep) -> None:
    """Move the run_at of a job that waits for a retry, and reset its counts. Its data stays."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", payload=b"1")
    [run] = claim(lockstep, lease)
    settle(lockstep, run, RetryLater(delay=HOUR, error=Error(type="Oops")))
    update(lockstep, Update(create=False, run_at="later"), delay=5)
    update(lockstep, Update(create=False, run_at="earlier"), delay=5)
    update(lockstep, RESET)
    lockstep.pass_time(5)
    claim(lockstep, lease)


def end_with_updates_alone(lockstep: Lockstep) -> None:
    """End runs in each way with update-only requests alone. Nothing is promoted, and each range is joined."""
    lease = lockstep.grant([QUEUE, FAILED], HOUR, "kit")
    reader = Reader()
    lockstep.configure(QUEUE, SettingsPatch(fail_handler=True, log_level="all"))
    ends: tuple[SettleAction, ...] = (Complete(result=b"1"), Fail(error=Error(type="Oops")), Cancelled())
    for end in ends:
        enqueue(lockstep, "a", "b")
        first, second = claim(lockstep, lease)
        for id in ("a", "b"):
            update(lockstep, id=id, delay=HOUR)
            update(lockstep, RESET, id=id)
        lockstep.counts([QUEUE])
        export_in_parts(lockstep, QUEUE, 1, 10)
        settle(lockstep, first, end, end)
        ended = Settlement(id=second[0], fence=second[1], action=end)
        lockstep.settle_and_claim(QUEUE, [ended], lease, 10)
        lockstep.events(QUEUE, reader, 100)
    lockstep.claim(FAILED, lease, 10)


def finish_with_updates_alone(lockstep: Lockstep) -> None:
    """Finish a handed-off run by the revision of its enqueue, then by that of an update-only request."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a")
    [job] = lockstep.claim(QUEUE, lease, 1).jobs
    settle(lockstep, (job.id, job.run.fence if job.run else 0), HandOff())
    later = update(lockstep)
    lockstep.finish(QUEUE, "a", Complete(), later)
    lockstep.finish(QUEUE, "a", Complete(), job.revision)
    lockstep.finish(QUEUE, "a", Complete(), later)
    lockstep.finish(QUEUE, "a", Cancelled(), later)


def create_after_updates(lockstep: Lockstep) -> None:
    """Enqueue a job after update-only requests. It counts whole, at its own place, and moves after that."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for rule in (Update(data=False, run_at="later"), Update(run_at="earlier"), Update(run_at="never")):
        enqueue(lockstep, "a", payload=b"1")
        [run] = claim(lockstep, lease)
        update(lockstep, delay=HOUR)
        update(lockstep, Update(create=False, run_at="later"), delay=2 * HOUR)
        lockstep.pass_time(1)
        enqueue(lockstep, "b")
        job = NewJob(id="a", data=JobData(payload=b"2"), run_at=lockstep.now)
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=job, on_conflict=rule)])
        update(lockstep, Update(create=False, run_at="earlier"), run_at=lockstep.now + 1)
        settle(lockstep, run, Complete())
        for run in claim(lockstep, lease):
            settle(lockstep, run, Complete())


def come_back_after_updates(lockstep: Lockstep) -> None:
    """Return runs in each way with update-only requests alone: their time and their reset count."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    returns: tuple[SettleAction, ...] = (
        RetryLater(error=Error(type="Oops")),
        Release(),
        Release(delay=1),
        RetryLater(delay=HOUR),
    )
    for action in returns:
        enqueue(lockstep, "a")
        [run] = claim(lockstep, lease)
        update(lockstep, Update(create=False, run_at="later"), delay=5)
        update(lockstep, Update(create=False, run_at="earlier"), delay=7)
        settle(lockstep, run, action)
        lockstep.pass_time(7)
        [run] = claim(lockstep, lease)
        update(lockstep, RESET)
        settle(lockstep, run, action)
        lockstep.forget(QUEUE, ["a"])


def drop_updates(lockstep: Lockstep) -> None:
    """Cancel successors of update-only requests, before the run ends and before it is retried."""
    lockstep.configure(QUEUE, SettingsPatch(log_level="all"))
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for running, action in ((False, Complete()), (False, RetryLater()), (True, RetryLater())):
        enqueue(lockstep, "a")
        [run] = claim(lockstep, lease)
        update(lockstep, delay=HOUR)
        update(lockstep)
        lockstep.cancel(QUEUE, ["a"], running=running)
        settle(lockstep, run, action)
        lockstep.forget(QUEUE, ["a"])
    lockstep.events(QUEUE, Reader(), 100)


def amend_beside_updates(lockstep: Lockstep) -> None:
    """Amend an active job with update-only requests, before and after a request that creates a job."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for action in (Complete(), RetryLater()):
        enqueue(lockstep, "a")
        [run] = claim(lockstep, lease)
        update(lockstep)
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"a": b"1"}))
        job = NewJob(id="a", data=JobData(payload=b"2", attributes={"b": b"2"}))
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=job, on_conflict=Update(data=False))])
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"c": b"3"}))
        settle(lockstep, run, action)
        lockstep.forget(QUEUE, ["a"])


def follow_up_with_updates(lockstep: Lockstep) -> None:
    """End runs with update-only follow-ups: for an id without a job, for a waiting and for an active one."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b")
    first, second = claim(lockstep, lease)
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="c", delay=HOUR))])
    then = tuple(FollowUp(queue=QUEUE, job=NewJob(id=id), on_conflict=MOVE) for id in ("a", "b", "c"))
    settle(lockstep, first, Complete(then=then))
    settle(lockstep, second, Fail(error=Error(type="Oops"), then=then))
    claim(lockstep, lease)


HISTORIES: tuple[Callable[[Lockstep], None], ...] = (
    update_without_a_job,
    update_a_waiting_job,
    end_with_updates_alone,
    finish_with_updates_alone,
    create_after_updates,
    come_back_after_updates,
    drop_updates,
    amend_beside_updates,
    follow_up_with_updates,
)
