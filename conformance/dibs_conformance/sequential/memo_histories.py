"""Fixed histories of memos: who may store one, what keeps it, and what removes it."""

from __future__ import annotations

from collections.abc import Callable

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
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
    Update,
)
from dibs_conformance.sequential.moving import read_export
from dibs_conformance.sequential.walkthrough import FAILED, QUEUE, RunRef, claim, enqueue, settle
from dibs_conformance.strategies import HOUR
from dibs_conformance.verbs import Lockstep

#: Bytes that are no text, to find a storage that decodes a memo.
MEMO = b"\x00\xffmemo"
KEPT = OutcomeRetention(keep_payload=("completed", "failed", "cancelled"))


def run_with_memo(lockstep: Lockstep, lease: str, id: str = "a", memo: bytes = MEMO) -> RunRef:
    """Enqueue and claim a job with attributes, and report a memo on its run."""
    data = JobData(payload=b"1", attributes={"a": b"1"})
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=data))])
    [run] = claim(lockstep, lease)
    lockstep.report(QUEUE, *run, memo=memo)
    return run


def keep_a_memo(lockstep: Lockstep) -> None:
    """Bring a run with a memo back in each way. The next run gets it, also beside an amend and progress."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    run = run_with_memo(lockstep, lease)
    returns: tuple[SettleAction, ...] = (
        RetryLater(error=Error(type="Oops")),
        Release(),
        Release(run_at=lockstep.now),
    )
    for action in returns:
        settle(lockstep, run, action)
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"b": b"2"}, priority=1))
        [run] = claim(lockstep, lease)
        lockstep.report(QUEUE, *run, b"0.5")
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"c": b"3"}))
    lockstep.drop([QUEUE], lease, 1)
    claim(lockstep, lockstep.grant([QUEUE], 10, "kit"))
    lockstep.pass_time(10)
    lockstep.reap(QUEUE, 1)
    [run] = claim(lockstep, lockstep.grant([QUEUE], HOUR, "kit"))
    read_export(lockstep, QUEUE, 1)
    lockstep.report(QUEUE, *run, b"1", b"")
    settle(lockstep, run, RetryLater())
    claim(lockstep, lockstep.grant([QUEUE], HOUR, "kit"))


def report_a_memo_late(lockstep: Lockstep) -> None:
    """Report a memo under the fence of a reaped run, a settled run, and a handed-off run."""
    lease = lockstep.grant([QUEUE], 10, "kit")
    late = run_with_memo(lockstep, lease)
    lockstep.pass_time(10)
    lockstep.reap(QUEUE, 10)
    lockstep.report(QUEUE, *late, memo=b"late")
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    [run] = claim(lockstep, lease)
    lockstep.report(QUEUE, *late, memo=b"late")
    lockstep.report(QUEUE, *late, b"0.5", b"")
    settle(lockstep, run, HandOff())
    lockstep.report(QUEUE, *run, b"0.5", b"handed off")
    settle(lockstep, run, Fail(error=Error(type="Oops")))
    lockstep.report(QUEUE, *run, memo=b"late")
    lockstep.retry_failed(QUEUE, ["a"])
    claim(lockstep, lease)


def replace_data_with_a_memo(lockstep: Lockstep) -> None:
    """Update a job with a memo: in place, and during a run that comes back. New data has no memo."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    rules = (Update(data=False), Update(create=False), Update(), Update(reset_counts=False))
    for rule in rules:
        data = JobData(payload=b"2") if rule.create else JobData()
        request = EnqueueRequest(job=NewJob(id="a", data=data), on_conflict=rule)
        run = run_with_memo(lockstep, lease)
        settle(lockstep, run, Release())
        lockstep.enqueue(QUEUE, [request])
        [run] = claim(lockstep, lease)
        lockstep.report(QUEUE, *run, memo=MEMO)
        lockstep.enqueue(QUEUE, [request])
        settle(lockstep, run, RetryLater())
        [run] = claim(lockstep, lease)
        lockstep.report(QUEUE, *run, memo=MEMO)
        lockstep.enqueue(QUEUE, [request])
        settle(lockstep, run, Complete())
        lockstep.forget(QUEUE, ["a"])


def end_with_a_memo(lockstep: Lockstep) -> None:
    """End runs with a memo. Only a failed outcome with its data keeps it, and `retry_failed` returns it."""
    lockstep.configure(QUEUE, SettingsPatch(fail_handler=True))
    lease = lockstep.grant([QUEUE, FAILED], HOUR, "kit")
    error = Error(type="Oops")
    ends = (
        Complete(retention=KEPT),
        Complete(),
        Cancelled(retention=KEPT, error=error),
        Fail(error=error, retention=OutcomeRetention(keep_payload=())),
        Fail(error=error),
    )
    for end in ends:
        settle(lockstep, run_with_memo(lockstep, lease), end)
        lockstep.retry_failed(QUEUE, ["a"])
    [run] = claim(lockstep, lease)
    settle(lockstep, run, Fail(error=error))
    enqueue(lockstep, "a")
    claim(lockstep, lease)
    for job in lockstep.claim(FAILED, lease, 10).jobs:
        lockstep.report(FAILED, job.id, job.run.fence if job.run else 0, memo=b"of the fail job")


def cancel_with_a_memo(lockstep: Lockstep) -> None:
    """Cancel a waiting job with a memo, and a run with a memo and a successor."""
    lockstep.configure(QUEUE, SettingsPatch(retention=KEPT))
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    settle(lockstep, run_with_memo(lockstep, lease), Release())
    lockstep.cancel(QUEUE, ["a"], running=False)
    run = run_with_memo(lockstep, lease)
    enqueue(lockstep, "a")
    lockstep.cancel(QUEUE, ["a"], running=True)
    settle(lockstep, run, Release(delay=5))


HISTORIES: tuple[Callable[[Lockstep], None], ...] = (
    keep_a_memo,
    report_a_memo_late,
    replace_data_with_a_memo,
    end_with_a_memo,
    cancel_with_a_memo,
)
