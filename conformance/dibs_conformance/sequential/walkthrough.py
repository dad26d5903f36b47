"""The tour: short fixed histories that lead to where each law speaks, before chance takes over.

A law that was never met is not tested, and a level with such a law is not reached. The tour makes sure that
even a run of one example meets every law; a storage that is wrong in plain ways is told so by a short story.
Each stop begins in a place of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from dibs.model.job import FAIL_SUFFIX, Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Fail,
    FollowUp,
    JobPatch,
    Reject,
    RetryLater,
    SettingsPatch,
    SettleAction,
    Settlement,
)
from dibs_conformance.sequential.lockstep import Pair, Reader, export_in_parts
from dibs_conformance.sequential.state_machine import START
from dibs_conformance.sequential.strategies import HOUR
from dibs_conformance.sequential.trial import Trial
from dibs_conformance.target import Opened

QUEUE = "q"
FAILED = QUEUE + FAIL_SUFFIX


def take_tour(trial: Trial) -> None:
    """Make every stop. Raises what the laws and the oracle raise."""
    for stop in STOPS:
        trial.examples += 1
        trial.judges.begin()
        opened = Opened(trial.places, trial.bridge, trial.places.new())
        pair = Pair(opened, trial.bridge, trial.judges, now=START, looking=True)
        try:
            stop(pair)
        except BaseException:
            # What went wrong is the news, not what closing after it says.
            with suppress(Exception):
                pair.opened.close()
            raise
        else:
            pair.opened.close()
        finally:
            trial.calls += pair.oracle.numbers.call


def update_beside_a_run(pair: Pair) -> None:
    """An update beside a run is in the next run; the old fence ends nothing any more, but repeats its end."""
    lease = pair.grant([QUEUE], HOUR, "kit")
    enqueue(pair, "a", payload=b"1")
    enqueue(pair, "a", payload=b"2")
    [first] = claim(pair, lease)
    enqueue(pair, "a", payload=b"3")
    enqueue(pair, "a", payload=b"4")
    settle(pair, first, Complete(result=b"1"), Complete(result=b"1"), Complete(result=b"1"))
    [second] = claim(pair, lease)
    settle(pair, first, RetryLater())
    settle(pair, second, Complete(result=b"2"))
    pair.look(QUEUE)


def take_in_order(pair: Pair) -> None:
    """The urgent before the old, the old before the new, and the later not yet."""
    lease = pair.grant([QUEUE], HOUR, "kit")
    jobs = [NewJob(id="late", delay=5), NewJob(id="a"), NewJob(id="b"), urgent("c")]
    pair.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])
    claim(pair, lease)
    pair.pass_time(5)
    claim(pair, lease)


def urgent(id: str) -> NewJob:
    return NewJob(id=id, data=JobData(priority=1))


def pause_and_bound(pair: Pair) -> None:
    """A paused queue hands nothing out; one with max_active never more than that, be it 0."""
    lease = pair.grant([QUEUE], HOUR, "kit")
    enqueue(pair, "a", "b", "c")
    pair.configure(QUEUE, SettingsPatch(paused=True))
    claim(pair, lease)
    for most in (0, 1, 2):
        pair.configure(QUEUE, SettingsPatch(paused=False, max_active=most))
        claim(pair, lease)
    pair.counts([QUEUE])


def ask_to_cancel(pair: Pair) -> None:
    """A run that is asked to stop ends, whether it is returned or reaped; a dropped successor is told."""
    lease = pair.grant([QUEUE], 10, "kit")
    enqueue(pair, "a", "b")
    runs = claim(pair, lease)
    enqueue(pair, "a")
    pair.cancel(QUEUE, ["a", "b"], running=True)
    pair.renew([QUEUE], lease, 10)
    settle(pair, runs[0], RetryLater())
    pair.pass_time(10)
    pair.reap(QUEUE, 10)
    pair.look(QUEUE)


def let_a_lease_end(pair: Pair) -> None:
    """A lease lives to its last ms and not to the next; what it held comes back, and its fence is lost."""
    lease = pair.grant([QUEUE], 10, "kit")
    enqueue(pair, "a")
    [run] = claim(pair, lease)
    pair.pass_time(9)
    pair.renew([QUEUE], lease, 2)
    pair.pass_time(2)
    pair.renew([QUEUE], lease, 10)
    pair.reap(QUEUE, 10)
    claim(pair, pair.grant([QUEUE], HOUR, "kit"))
    settle(pair, run, Complete())


def repeat_a_key(pair: Pair) -> None:
    """A request_key acts once in its time, and again after it."""
    request = EnqueueRequest(job=NewJob(id="a"), request_key="k")
    pair.enqueue(QUEUE, [request])
    pair.enqueue(QUEUE, [request])
    pair.pass_time(HOUR)
    pair.enqueue(QUEUE, [request])


def fail_for_good(pair: Pair) -> None:
    """A handled failure makes its fail job; the failed job can be sent round again."""
    lease = pair.grant([QUEUE, FAILED], HOUR, "kit")
    enqueue(pair, "a", payload=b"\x00\xff")
    [run] = claim(pair, lease)
    settle(pair, run, Fail(error=Error(type="Oops"), handled=True))
    for job in pair.claim(FAILED, lease, 10).jobs:
        fence = job.run.fence if job.run is not None else 0
        last = Fail(error=Error(type="Again"))
        pair.settle(FAILED, [Settlement(id=job.id, fence=fence, action=last)])
    pair.retry_failed(QUEUE, ["a"])
    claim(pair, lease)


def meet_an_outcome(pair: Pair) -> None:
    """What ended is known to a Reject until it expires, can be kept anew, sent round as it was, and read."""
    lease = pair.grant([QUEUE], HOUR, "kit")
    jobs = [NewJob(id=id, data=JobData(payload=b"1", attributes={"a": b"1"}, priority=1)) for id in ("a", "b")]
    pair.enqueue(QUEUE, [EnqueueRequest(job=job) for job in jobs])
    done, failed = claim(pair, lease)
    then = tuple(FollowUp(queue=QUEUE, job=NewJob(id=id)) for id in ("c", "d"))
    settle(pair, done, Complete(result=b"1", then=then, retention=OutcomeRetention(completed=10)))
    settle(pair, failed, Fail(error=Error(type="Oops"), retention=OutcomeRetention(failed=10)))
    rejects = [EnqueueRequest(job=NewJob(id=id), on_conflict=Reject(failed=True)) for id in ("a", "b")]
    pair.enqueue(QUEUE, rejects)
    pair.pass_time(5)
    pair.amend(QUEUE, "b", JobPatch(retention=OutcomeRetention(completed=10, failed=10, cancelled=10)))
    pair.pass_time(9)
    pair.enqueue(QUEUE, rejects[:1])
    pair.retry_failed(QUEUE, ["b"])
    [failed] = [run for run in claim(pair, lease) if run[0] == "b"]
    settle(pair, failed, Fail(error=Error(type="Oops")))
    pair.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="b"), on_conflict=Reject())])
    export_in_parts(pair, QUEUE, 3, 1)


def report_late(pair: Pair) -> None:
    """Who was reaped reports nothing any more; who holds the job now does."""
    lease = pair.grant([QUEUE], 10, "kit")
    enqueue(pair, "a")
    [(id, late)] = claim(pair, lease)
    pair.pass_time(10)
    pair.reap(QUEUE, 10)
    [(_, fence)] = claim(pair, pair.grant([QUEUE], HOUR, "kit"))
    pair.report(QUEUE, id, late, b"0.5")
    pair.report(QUEUE, id, fence, b"0.1")


def read_the_log(pair: Pair) -> None:
    """Every attempt has its event; a reader goes on where it stopped, and misses nothing."""
    lease = pair.grant([QUEUE], HOUR, "kit")
    reader = Reader()
    for how in (RetryLater(), Complete()):
        enqueue(pair, "a")
        for run in claim(pair, lease):
            settle(pair, run, how)
        pair.events(QUEUE, reader, 1)
    pair.forget(QUEUE, ["a"])
    enqueue(pair, "a")
    claim(pair, lease)


STOPS: tuple[Callable[[Pair], None], ...] = (
    update_beside_a_run,
    take_in_order,
    pause_and_bound,
    ask_to_cancel,
    let_a_lease_end,
    repeat_a_key,
    fail_for_good,
    meet_an_outcome,
    report_late,
    read_the_log,
)


# -- words the stops are written in ------------------------------------------------------------------

#: A claimed run: its id and fence.
Held = tuple[str, int]


def enqueue(pair: Pair, *ids: str, payload: bytes = b"") -> None:
    pair.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id=id, data=JobData(payload=payload))) for id in ids])


def claim(pair: Pair, lease: str) -> Sequence[Held]:
    jobs = pair.claim(QUEUE, lease, 10).jobs
    return [(job.id, job.run.fence) for job in jobs if job.run is not None]


def settle(pair: Pair, held: Held, *hows: SettleAction) -> None:
    id, fence = held
    for how in hows:
        pair.settle(QUEUE, [Settlement(id=id, fence=fence, action=how)])
