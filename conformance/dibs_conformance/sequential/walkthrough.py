"""The walkthrough: short fixed histories that call every verb, before the random examples.

A level is reached only if the results of each verb were compared. With the walkthrough, even a run of one
example does that, and a simple bug is reported with few calls. Each history runs in a new location.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    HandOff,
    JobPatch,
    Reject,
    Release,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs_conformance.lockstep.core import Interruptions
from dibs_conformance.sequential.moving import export_in_parts
from dibs_conformance.sequential.session import ExampleSession
from dibs_conformance.sequential.state_machine import START
from dibs_conformance.strategies import DAY, HOUR
from dibs_conformance.target import OpenedStorage
from dibs_conformance.verbs import Lockstep
from dibs_conformance.verbs.events import Reader

QUEUE = "q"
FAILED = QUEUE + FAIL_SUFFIX


def play_history(
    session: ExampleSession,
    play: Callable[[Lockstep], None],
    *,
    handles: int = 1,
    compare_each: bool = True,
    interruptions: Interruptions | None = None,
) -> None:
    """Run one history at a new location, with several handles if the storage allows them."""
    session.examples += 1
    session.story.begin()
    location = session.locations.new()
    handles = handles if session.handles else 1
    opened = OpenedStorage(session.locations, session.runner, location, handles=handles)
    lockstep = Lockstep(
        opened,
        session.runner,
        session.story,
        now=START,
        compare_each=compare_each,
        interruptions=interruptions,
    )
    try:
        play(lockstep)
    except BaseException:
        # An error from `close` would hide the error of the history.
        with suppress(Exception):
            lockstep.opened.close()
        raise
    else:
        lockstep.opened.close()
    finally:
        session.calls += lockstep.oracle.numbers.call


def walk_through(session: ExampleSession) -> None:
    """Run every history. Raise Mismatch for the first wrong result."""
    for play in HISTORIES:
        play_history(session, play, handles=2 if play is use_two_handles else 1)


def update_during_a_run(lockstep: Lockstep) -> None:
    """Update an id during its run. The next run has the update. A repeated settlement changes no job."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", payload=b"1")
    enqueue(lockstep, "a", payload=b"2")
    [first] = claim(lockstep, lease)
    enqueue(lockstep, "a", payload=b"3")
    enqueue(lockstep, "a", payload=b"4")
    settle(lockstep, first, Complete(result=b"1"), Complete(result=b"1"), Complete(result=b"1"))
    [second] = claim(lockstep, lease)
    settle(lockstep, first, RetryLater())
    settle(lockstep, second, Complete(result=b"2"))
    lockstep.compare_slots(QUEUE)


def claim_in_order(lockstep: Lockstep) -> None:
    """Claim jobs of two priorities. A job with a delay is claimed only after the delay."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    jobs = [NewJob(id="late", delay=5), NewJob(id="a"), NewJob(id="b"), urgent_job("c")]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])
    claim(lockstep, lease)
    lockstep.pass_time(5)
    claim(lockstep, lease)


def urgent_job(id: str) -> NewJob:
    return NewJob(id=id, data=JobData(priority=1))


def return_in_order(lockstep: Lockstep) -> None:
    """In the same ms, a promoted and a released job keep their places among the others; a retry goes last."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b", "c", "d")
    promoted, released, retried = claim(lockstep, lease, 3)
    enqueue(lockstep, "a", "e")
    settle(lockstep, promoted, Complete())
    settle(lockstep, released, Release())
    settle(lockstep, retried, RetryLater())
    claim(lockstep, lease)


def pause_and_limit(lockstep: Lockstep) -> None:
    """Claim from a paused queue, and from one with max_active 0, 1 and 2. Count and list its jobs."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b", "c")
    lockstep.configure(QUEUE, SettingsPatch(paused=True))
    claim(lockstep, lease)
    for most in (0, 1, 2):
        lockstep.configure(QUEUE, SettingsPatch(paused=False, max_active=most))
        claim(lockstep, lease)
    lockstep.counts([QUEUE])
    lockstep.list(QUEUE, "waiting", 1)


def cancel_active_runs(lockstep: Lockstep) -> None:
    """Cancel two active runs, one with a successor. The runs end when they are retried and reaped."""
    lease = lockstep.grant([QUEUE], 10, "kit")
    enqueue(lockstep, "a", "b")
    runs = claim(lockstep, lease)
    enqueue(lockstep, "a")
    lockstep.cancel(QUEUE, ["a", "b"], running=True)
    lockstep.renew([QUEUE], lease, 10)
    settle(lockstep, runs[0], RetryLater())
    lockstep.pass_time(10)
    lockstep.reap(QUEUE, 10)
    lockstep.compare_slots(QUEUE)


def expire_a_lease(lockstep: Lockstep) -> None:
    """Renew a lease 1 ms before its expiry and at its expiry. Its job returns, and the old fence is lost."""
    lease = lockstep.grant([QUEUE], 10, "kit")
    enqueue(lockstep, "a")
    [run] = claim(lockstep, lease)
    lockstep.pass_time(9)
    lockstep.renew([QUEUE], lease, 2)
    lockstep.pass_time(2)
    lockstep.renew([QUEUE], lease, 10)
    lockstep.reap(QUEUE, 10)
    claim(lockstep, lockstep.grant([QUEUE], HOUR, "kit"))
    settle(lockstep, run, Complete())


def repeat_a_key(lockstep: Lockstep) -> None:
    """Repeat a request_key while the queue remembers it, also with another id, and after that."""
    request = EnqueueRequest(job=NewJob(id="a"), request_key="k")
    lockstep.enqueue(QUEUE, [request])
    lockstep.enqueue(QUEUE, [request])
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="b"), request_key="k")])
    lockstep.pass_time(HOUR)
    lockstep.enqueue(QUEUE, [request])


def fail_and_retry(lockstep: Lockstep) -> None:
    """Fail a run under `fail_handler`, fail its fail job, and retry the failed job."""
    lockstep.configure(QUEUE, SettingsPatch(fail_handler=True))
    lease = lockstep.grant([QUEUE, FAILED], HOUR, "kit")
    enqueue(lockstep, "a", payload=b"\x00\xff")
    [run] = claim(lockstep, lease)
    settle(lockstep, run, Fail(error=Error(type="Oops")))
    for job in lockstep.claim(FAILED, lease, 10).jobs:
        fence = job.run.fence if job.run is not None else 0
        last = Fail(error=Error(type="Again"))
        lockstep.settle(FAILED, [Settlement(id=job.id, fence=fence, action=last)])
    lockstep.retry_failed(QUEUE, ["a"])
    claim(lockstep, lease)


def use_an_outcome(lockstep: Lockstep) -> None:
    """Use outcomes: reject an ended id, extend a retention, retry a failed job, and export."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    jobs = [
        NewJob(id=id, data=JobData(payload=b"1", attributes={"a": b"1"}, priority=1)) for id in ("a", "b")
    ]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])
    done, failed = claim(lockstep, lease)
    then = tuple(FollowUp(queue=QUEUE, job=NewJob(id=id)) for id in ("c", "d", "e"))
    settle(lockstep, done, Complete(result=b"1", then=then, retention=OutcomeRetention(completed=10)))
    settle(lockstep, failed, Fail(error=Error(type="Oops"), retention=OutcomeRetention(failed=10)))
    rejects = [EnqueueRequest(job=NewJob(id=id), on_conflict=Reject(failed=True)) for id in ("a", "b")]
    lockstep.enqueue(QUEUE, rejects)
    lockstep.pass_time(5)
    lockstep.amend(QUEUE, "b", JobPatch(retention=OutcomeRetention(completed=10, failed=10, cancelled=10)))
    lockstep.pass_time(9)
    lockstep.enqueue(QUEUE, rejects[:1])
    lockstep.retry_failed(QUEUE, ["b"])
    [failed] = [run for run in claim(lockstep, lease) if run[0] == "b"]
    settle(lockstep, failed, Fail(error=Error(type="Oops")))
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="b"), on_conflict=Reject())])
    export_in_parts(lockstep, QUEUE, 3, 1)


def report_late(lockstep: Lockstep) -> None:
    """Report progress with the fence of a reaped run, and with the fence of the active run."""
    lease = lockstep.grant([QUEUE], 10, "kit")
    enqueue(lockstep, "a")
    [(id, late)] = claim(lockstep, lease)
    lockstep.pass_time(10)
    lockstep.reap(QUEUE, 10)
    [(_, fence)] = claim(lockstep, lockstep.grant([QUEUE], HOUR, "kit"))
    lockstep.report(QUEUE, id, late, b"0.5")
    lockstep.report(QUEUE, id, fence, b"0.1")


def read_the_log(lockstep: Lockstep) -> None:
    """Read the log after each attempt. The reader must get one event for each attempt."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    reader = Reader()
    for action in (RetryLater(), Complete()):
        enqueue(lockstep, "a")
        for run in claim(lockstep, lease):
            settle(lockstep, run, action)
        lockstep.events(QUEUE, reader, 1)
    lockstep.forget(QUEUE, ["a"])
    enqueue(lockstep, "a")
    claim(lockstep, lease)


def fall_off_an_empty_log(lockstep: Lockstep) -> None:
    """Read an empty log, then trim events before the reader reads on. The reader must get `fell_off`."""
    reader = Reader()
    lockstep.events(QUEUE, reader, 10)
    enqueue(lockstep, "a", "b")
    lockstep.cancel(QUEUE, ["a"], running=False)
    lockstep.pass_time(2 * DAY)
    lockstep.cancel(QUEUE, ["b"], running=False)
    lockstep.prune(QUEUE, 10)
    lockstep.events(QUEUE, reader, 10)


def trim_a_log_by_size(lockstep: Lockstep) -> None:
    """Write more events in one ms than `log_bytes` holds. A reader from before them must get `fell_off`."""
    reader = Reader()
    lockstep.configure(QUEUE, SettingsPatch(log_level="all", log_bytes=300))
    enqueue(lockstep, "a")
    lockstep.events(QUEUE, reader, 10)
    for payload in b"123456789":
        enqueue(lockstep, "a", payload=bytes([payload]))
    lockstep.prune(QUEUE, 10)
    lockstep.events(QUEUE, reader, 10)


def call_with_batches(lockstep: Lockstep) -> None:
    """Pass batches to several verbs. Each item has a result of its own, and some ids are repeated."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    jobs = [NewJob(id=id, data=JobData(priority=at % 3)) for at, id in enumerate("abcdefg")]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])
    first, second, third = lockstep.claim(QUEUE, lease, 3).jobs
    runs = [(job, job.run.fence) for job in (second, first, third, first) if job.run is not None]
    actions: tuple[SettleAction, ...] = (
        Complete(result=b"1"),
        Cancelled(),
        Fail(error=Error(type="Oops")),
        Complete(),
    )
    settled = [
        Settlement(id=job.id, fence=fence, action=action)
        for (job, fence), action in zip(runs, actions, strict=True)
    ]
    lockstep.settle(QUEUE, settled)
    lockstep.settle(QUEUE, settled)
    claim(lockstep, lease, 2)
    ids = [third.id, "unknown", first.id, "g", third.id, second.id]
    lockstep.retry_failed(QUEUE, ids)
    lockstep.cancel(QUEUE, [*ids, "a", "d"], running=False)
    lockstep.forget(QUEUE, ids)
    jobs = [NewJob(id=id, data=JobData(payload=id.encode())) for id in "gagag"]
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])


def log_every_change(lockstep: Lockstep) -> None:
    """Make changes at log level `all`, and compare each event with all its fields."""
    lockstep.configure(QUEUE, SettingsPatch(log_level="all"))
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "a", "b")
    runs = claim(lockstep, lease)
    lockstep.pass_time(5)
    enqueue(lockstep, "a")
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"a": b"1"}))
    settle(lockstep, runs[0], HandOff())
    settle(lockstep, runs[1], RetryLater(delay=5, error=Error(type="Oops")))
    settle(lockstep, runs[0], Complete())
    lockstep.amend(QUEUE, "b", JobPatch(priority=1))
    lockstep.forget(QUEUE, ["a", "b"])
    lockstep.events(QUEUE, Reader(), 100)


def finish_runs(lockstep: Lockstep) -> None:
    """Hand off three runs and finish each twice: with follow-ups, with a fail job, and as cancelled.

    The follow-ups of the second run update those of the first.
    """
    lockstep.configure(QUEUE, SettingsPatch(fail_handler=True))
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a", "b", "c")
    first, second = (
        tuple(
            FollowUp(queue=QUEUE, job=NewJob(id=id, data=JobData(payload=run + id.encode()), delay=delay))
            for id in ("d", "e", "f")
        )
        for run, delay in ((b"1", 4), (b"2", 5))
    )
    ends: list[Complete | Fail | Cancelled] = [
        Complete(result=b"1", then=first),
        Fail(error=Error(type="Oops"), then=second),
        Cancelled(),
    ]
    for job, end in zip(lockstep.claim(QUEUE, lease, 3).jobs, ends, strict=False):
        if job.run is not None:
            settle(lockstep, (job.id, job.run.fence), HandOff())
            for _ in range(2):
                lockstep.finish(QUEUE, job.id, end, job.revision)
    lockstep.compare_slots(QUEUE, FAILED)
    lockstep.pass_time(5)
    claim(lockstep, lease)


def cancel_several_successors(lockstep: Lockstep) -> None:
    """Cancel three successors of one job, which is updated after each. All stay known as cancelled."""
    lease = lockstep.grant([QUEUE], HOUR, "kit")
    enqueue(lockstep, "a")
    for _ in range(3):
        [run] = claim(lockstep, lease)
        enqueue(lockstep, "a", "a")
        lockstep.cancel(QUEUE, ["a"], running=False)
        settle(lockstep, run, RetryLater())
        enqueue(lockstep, "a")
    lockstep.compare_slots(QUEUE)


def prune_everything(lockstep: Lockstep) -> None:
    """Let three outcomes and five request_keys expire, and prune with a limit of two.

    One of the ids has a new job. Before the prune, an export has only this id.
    """
    lease = lockstep.grant([QUEUE], 3 * DAY, "kit")
    keys = [EnqueueRequest(job=NewJob(id=id), request_key=str(key)) for key, id in enumerate("abcab")]
    lockstep.enqueue(QUEUE, keys)
    runs = claim(lockstep, lease)
    for run in runs:
        settle(lockstep, run, Complete(retention=OutcomeRetention(completed=5)))
    lockstep.pass_time(2 * DAY)
    enqueue(lockstep, "a")
    export_in_parts(lockstep, QUEUE, 2, 10)
    lockstep.prune_all(QUEUE, 2)
    for run in runs:
        settle(lockstep, run, Complete())


def use_two_handles(lockstep: Lockstep) -> None:
    """Make each call through one of two handles. Each change must show in the other one."""
    for _ in range(3):
        lease = lockstep.grant([QUEUE], HOUR, "kit")
        enqueue(lockstep, "a", "b")
        lockstep.configure(QUEUE, SettingsPatch(paused=True))
        claim(lockstep, lease)
        lockstep.configure(QUEUE, SettingsPatch(paused=False))
        for run in claim(lockstep, lease):
            enqueue(lockstep, run[0])
            lockstep.cancel(QUEUE, [run[0]], running=False)
            settle(lockstep, run, Complete())
        enqueue(lockstep, "a", "b")
        for _ in range(4):
            # A time before that of the last write counts as the time of the write, also of another handle.
            lockstep.pass_time(1)
            enqueue(lockstep, "c")
            lockstep.claim(QUEUE, lease, 1, now=lockstep.now - 10)
        lockstep.cancel(QUEUE, ["a", "b"], running=False)
        lockstep.pass_time(1)
        lockstep.counts([QUEUE])


HISTORIES: tuple[Callable[[Lockstep], None], ...] = (
    update_during_a_run,
    claim_in_order,
    return_in_order,
    pause_and_limit,
    cancel_active_runs,
    expire_a_lease,
    repeat_a_key,
    fail_and_retry,
    use_an_outcome,
    report_late,
    read_the_log,
    fall_off_an_empty_log,
    trim_a_log_by_size,
    call_with_batches,
    log_every_change,
    finish_runs,
    cancel_several_successors,
    prune_everything,
    use_two_handles,
)


# -- calls of the histories --------------------------------------------------------------------------

#: The id and the fence of an active run.
RunRef = tuple[str, int]


def enqueue(lockstep: Lockstep, *ids: str, payload: bytes = b"") -> None:
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload))) for id in ids])


def claim(lockstep: Lockstep, lease: str, limit: int = 10) -> Sequence[RunRef]:
    jobs = lockstep.claim(QUEUE, lease, limit).jobs
    return [(job.id, job.run.fence) for job in jobs if job.run is not None]


def settle(lockstep: Lockstep, run: RunRef, *actions: SettleAction) -> None:
    id, fence = run
    for action in actions:
        lockstep.settle(QUEUE, [Settlement(id=id, fence=fence, action=action)])
