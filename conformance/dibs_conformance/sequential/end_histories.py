"""Fixed histories of ends: releases with a time, fail handlers, logged results, attributes and progress."""

from __future__ import annotations

from collections.abc import Callable

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    End,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    QueueStep,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs_conformance.sequential.moving import read_export
from dibs_conformance.sequential.walkthrough import FAILED, QUEUE, RunRef, claim, enqueue, settle
from dibs_conformance.strategies import DATA, DAY, EVERYWHERE, HOUR
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.events import Reader

FAIL = Fail(error=Error(type="Oops", message="no"))
NOT_KEPT = OutcomeRetention(completed=0, failed=0, cancelled=0)


def release_with_a_time(lockstep: Lockstep) -> None:
    """Release runs with a delay, with a time and with neither.

    With a delay or a time, the job goes behind the others, also behind those with an equal time.
    """
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b", "c", "d")
    actions = (Release(run_at=lockstep.now), Release(), Release(delay=5), Release(run_at=0))
    for run, action in zip(claim(lockstep, lease), actions, strict=True):
        settle(lockstep, run, action)
    [*runs] = claim(lockstep, lease)
    enqueue(lockstep, "a")
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="b", delay=3), on_conflict=Update(run_at="later"))])
    for run in runs:
        settle(lockstep, run, Release(delay=2))
    lockstep.pass_time(5)
    claim(lockstep, lease)


def refuse_a_release(lockstep: Lockstep) -> None:
    """Release a run with both a delay and a time, a run that was asked to stop, and a handed-off run."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b", "c")
    both, asked, away = claim(lockstep, lease)
    settle(lockstep, both, Release(run_at=lockstep.now, delay=1), Release(delay=1), Release(delay=1))
    lockstep.cancel(QUEUE, ["b"], running=True)
    settle(lockstep, asked, Release(delay=1), Release(delay=1))
    settle(lockstep, away, HandOff(), Release(delay=1), Release())


def handle_failures(lockstep: Lockstep) -> None:
    """Fail runs by settle, settle_and_claim and finish, each with the setting `fail_handler` on and off.

    The setting changes between the claim and the end. A repeat makes no second fail job.
    """
    lease = lockstep.grant([QUEUE, FAILED], HOUR, "kit")
    for handled in (True, False, True):
        lockstep.configure(QUEUE, SettingsPatch(fail_handler=not handled))
        enqueue(lockstep, "a", "b", "c", payload=b"1")
        jobs = lockstep.claim(QUEUE, lease, 3).jobs
        first, second, third = ((job.id, job.run.fence) for job in jobs if job.run is not None)
        settle(lockstep, third, HandOff())
        lockstep.configure(QUEUE, SettingsPatch(fail_handler=handled))
        settle(lockstep, first, FAIL, FAIL)
        ended = [Settlement(id=second[0], fence=second[1], action=FAIL)]
        lockstep.settle_and_claim(QUEUE, [*ended, *ended], lease, 1)
        for _ in range(2):
            lockstep.finish(QUEUE, "c", FAIL, jobs[2].revision)
        lockstep.counts([QUEUE, FAILED])
    lockstep.claim(FAILED, lease, 10)


def fail_in_a_fail_queue(lockstep: Lockstep) -> None:
    """Fail a fail job, although its queue has `fail_handler`. A fail queue has no fail queue."""
    lease = lockstep.grant([QUEUE, FAILED], HOUR, "kit")
    for queue in (QUEUE, FAILED):
        lockstep.configure(queue, SettingsPatch(fail_handler=True))
    enqueue(lockstep, "a")
    for run in claim(lockstep, lease):
        settle(lockstep, run, FAIL)
    for job in lockstep.claim(FAILED, lease, 10).jobs:
        fence = job.run.fence if job.run is not None else 0
        lockstep.settle(FAILED, [Settlement(id=job.id, fence=fence, action=FAIL)])
    lockstep.counts([FAILED])
    lockstep.known_queues()


def log_results(lockstep: Lockstep) -> None:
    """Complete runs with results at and above `log_results`, by each verb, with and without retention."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    reader = Reader()
    for most, sizes in ((0, (4,)), (4, (1, 4, 5)), (4096, (4096, 4097)), (0, (1,))):
        lockstep.configure(QUEUE, SettingsPatch(log_results=most))
        for size in sizes:
            retention = NOT_KEPT if size % 2 == 0 else None
            complete(lockstep, lease, Complete(result=b"r" * size, retention=retention))
        complete(lockstep, lease, Complete())
        lockstep.events(QUEUE, reader, 100)
        lockstep.configure(QUEUE, SettingsPatch(log_level="all"))


def complete(lockstep: Lockstep, lease: str, end: Complete) -> None:
    """Complete three runs: by settle, by settle_and_claim, and by finish after a hand-off."""
    enqueue(lockstep, "a", "b", "c")
    jobs = lockstep.claim(QUEUE, lease, 3).jobs
    first, second, third = ((job.id, job.run.fence) for job in jobs if job.run is not None)
    settle(lockstep, first, end)
    ended = Settlement(id=second[0], fence=second[1], action=end)
    lockstep.settle_and_claim(QUEUE, [ended], lease, 1)
    settle(lockstep, third, HandOff())
    lockstep.finish(QUEUE, "c", end, jobs[2].revision)


def keep_attributes(lockstep: Lockstep) -> None:
    """End jobs in each way, patch the attributes of their outcomes, and retry the failed ones."""
    lease = lockstep.grant([QUEUE], DAY, "kit")
    error = Error(type="Oops")
    ends: tuple[End, ...] = (
        Complete(result=b"1"),
        Cancelled(),
        Fail(error=error),
        Fail(error=error, retention=OutcomeRetention(keep_payload=())),
        Complete(retention=OutcomeRetention(keep_payload=("completed",))),
    )
    whole = OutcomeRetention(completed=HOUR, failed=HOUR, cancelled=HOUR, keep_payload=("failed",))
    for end in ends:
        run = run_with_attributes(lockstep, lease)
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"b": b"2"}))
        settle(lockstep, run, end)
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"a": b"3", "c": b"4"}))
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"d": b"5"}, retention=whole))
        for patch in (JobPatch(), JobPatch(priority=1), JobPatch(attributes={"e": b"6"}, payload=b"2")):
            lockstep.amend(QUEUE, "a", patch)
        lockstep.retry_failed(QUEUE, ["a"])
        enqueue(lockstep, "a")
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"f": b"7"}))
        lockstep.cancel(QUEUE, ["a"], running=False)
        lockstep.pass_time(HOUR)
        lockstep.amend(QUEUE, "a", JobPatch(attributes={"g": b"8"}))


def run_with_attributes(lockstep: Lockstep, lease: str) -> RunRef:
    job = NewJob(id="a", data=JobData(payload=b"1", attributes={"a": b"1"}))
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job)])
    [run] = claim(lockstep, lease)
    return run


def amend_beside_an_outcome(lockstep: Lockstep) -> None:
    """Amend a live job that has an outcome beside it: waiting, active, and with a successor."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    settle(lockstep, run_with_attributes(lockstep, lease), FAIL)
    enqueue(lockstep, "a")
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"b": b"2"}))
    [run] = claim(lockstep, lease)
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"c": b"3"}))
    enqueue(lockstep, "a")
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"d": b"4"}))
    settle(lockstep, run, Complete())


def amend_the_lease(lockstep: Lockstep) -> None:
    """Amend the lease of jobs with and without other overrides: twice while they wait, and during the run."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for data in DATA:
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="a", data=data))])
        lockstep.amend(QUEUE, "a", JobPatch(lease=5))
        lockstep.amend(QUEUE, "a", JobPatch(lease=70_000, attributes={"b": b"2"}))
        [run] = claim(lockstep, lease)
        for patch in (JobPatch(lease=9), JobPatch(lease=9, attributes={"c": b"3"})):
            lockstep.amend(QUEUE, "a", patch)
        settle(lockstep, run, Complete())
        lockstep.amend(QUEUE, "a", JobPatch(lease=9))


def cancel_with_a_reason(lockstep: Lockstep) -> None:
    """End runs as cancelled with a reason, also with one above 16 KiB, by settle and by finish."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    long = Error(type="Long", message="m" * 20_000)
    ends: tuple[SettleAction, ...] = (
        Cancelled(error=Error(type="Late", message="no")),
        Cancelled(error=long),
    )
    for end in ends:
        enqueue(lockstep, "a", "b")
        jobs = lockstep.claim(QUEUE, lease, 2).jobs
        first, second = ((job.id, job.run.fence) for job in jobs if job.run is not None)
        settle(lockstep, first, end, end)
        settle(lockstep, second, HandOff())
        if isinstance(end, Cancelled):
            lockstep.finish(QUEUE, "b", end, jobs[1].revision)
    lockstep.events(QUEUE, Reader(), 100)


def end_with_progress(lockstep: Lockstep) -> None:
    """End runs with progress in each way, by each verb, after a return, and beside an older outcome."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    for end in (Complete(), Complete(retention=NOT_KEPT), FAIL, Cancelled()):
        enqueue(lockstep, "a", "b", "c")
        jobs = lockstep.claim(QUEUE, lease, 3).jobs
        first, second, third = ((job.id, job.run.fence) for job in jobs if job.run is not None)
        for run in (first, second, third):
            lockstep.report(QUEUE, *run, b"1")
        settle(lockstep, first, Release())
        [first] = claim(lockstep, lease)
        lockstep.report(QUEUE, *second, b'{"of": 3, "done": 2}')
        lockstep.settle(QUEUE, [Settlement(id=run[0], fence=run[1], action=end) for run in (first, second)])
        settle(lockstep, third, HandOff())
        lockstep.report(QUEUE, *third, b"2")
        lockstep.finish(QUEUE, "c", end, jobs[2].revision)
        lockstep.amend(QUEUE, "b", JobPatch(attributes={"a": b"1"}))
        read_export(lockstep, QUEUE, 10)


def serve_two_queues(lockstep: Lockstep) -> None:
    """Claim in two queues with one call, then end the runs of both and claim the rest."""
    second = EVERYWHERE[1]
    lease = lockstep.grant([QUEUE, second], HOUR, "kit")
    for queue in (QUEUE, second):
        lockstep.enqueue(queue, [EnqueueRequest(job=NewJob(id=id)) for id in ("a", "b", "c")])
    queues = sorted((QUEUE, second))
    claims = lockstep.serve([QueueStep(queue, limit=2) for queue in queues], lease)
    ends = [
        [Settlement(id=job.id, fence=job.run.fence, action=Complete()) for job in claim.jobs if job.run]
        for claim in claims
    ]
    lockstep.serve([QueueStep(queue, done, 2) for queue, done in zip(queues, ends, strict=True)], lease)


HISTORIES: tuple[Callable[[Lockstep], None], ...] = (
    release_with_a_time,
    refuse_a_release,
    handle_failures,
    fail_in_a_fail_queue,
    log_results,
    keep_attributes,
    amend_beside_an_outcome,
    amend_the_lease,
    cancel_with_a_reason,
    end_with_progress,
    serve_two_queues,
)
