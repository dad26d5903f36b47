"""Fixed histories about `per_key`: the runs of a key that count, and the changes that make room for another.

Each history stops where a simple bug shows: in the claim after the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    JobPatch,
    Release,
    RetryLater,
    SettleAction,
    Update,
)
from dibs_conformance.sequential.keyed_calls import QUEUE, KeyedCalls, follow_up, new_job
from dibs_conformance.verbs import Lockstep

FAIL: Final = Fail(error=Error(type="Oops"))
#: The actions that make room for the next run of a key.
ACTIONS: Final[tuple[SettleAction, ...]] = (
    Complete(),
    FAIL,
    Cancelled(),
    RetryLater(),
    RetryLater(delay=5),
    Release(),
    Release(delay=5),
    HandOff(),
)


def pass_over_a_full_key(lockstep: Lockstep) -> None:
    """Claim with jobs of two keys and of none. Jobs behind those of a full key are taken."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:m", "d", "e:k", "f", "g:m")
    calls.claim(2)
    runs = calls.claim()
    calls.claim()
    calls.settle(runs, Complete())
    calls.claim()


def make_room_by_settling(lockstep: Lockstep) -> None:
    """Settle the run of a full key with each action. Then the next job of the key is taken."""
    for action in ACTIONS:
        calls = KeyedCalls(lockstep, per_key=1)
        calls.enqueue("a:k", "b:k")
        runs = calls.claim()
        calls.claim()
        calls.settle(runs, action)
        calls.claim(1)
        calls.pass_time(5)
        calls.claim()
        lockstep.forget(QUEUE, ["a", "b"])


def make_room_by_settle_and_claim(lockstep: Lockstep) -> None:
    """Settle and claim in one call. The claim takes the room that the settlement made, and no more."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:m", "d:k", "e:m")
    runs = calls.claim()
    for action in (Complete(), HandOff(), RetryLater(), Complete()):
        runs = calls.settle_and_claim(runs, action)


def make_room_by_reaping(lockstep: Lockstep) -> None:
    """Pass the end of a lease. Its runs count until they are reaped, one at a time."""
    calls = KeyedCalls(lockstep, per_key=2)
    calls.enqueue("a:k", "b:k", "c:k", "d:k")
    calls.claim(lease=lockstep.grant([QUEUE], 10, "kit"))
    calls.pass_time(10)
    calls.claim()
    for _ in range(2):
        lockstep.reap(QUEUE, 1)
        calls.claim()


def make_room_by_dropping(lockstep: Lockstep) -> None:
    """Drop a lease with two runs of a key, one at a time."""
    calls = KeyedCalls(lockstep, per_key=2)
    calls.enqueue("a:k", "b:k", "c:k", "d:k")
    lease = lockstep.grant([QUEUE], 1000, "kit")
    calls.claim(lease=lease)
    for _ in range(2):
        lockstep.drop([QUEUE], lease, 1)
        calls.claim()


def make_room_by_id(lockstep: Lockstep) -> None:
    """Forget a run, finish and cancel handed-off runs, and end runs whose cancellation was requested."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue(*(f"{id}:k" for id in "abcdefg"))
    calls.claim()
    lockstep.forget(QUEUE, ["a"])
    calls.settle(calls.claim(), HandOff())
    runs = calls.claim()
    lockstep.cancel(QUEUE, ["b", "c"], running=True)
    calls.claim()
    calls.settle(runs, Release())
    jobs = lockstep.claim(QUEUE, calls.lease, 10).jobs
    calls.settle({job.id: job.run.fence for job in jobs if job.run is not None}, HandOff())
    calls.claim()
    for job in jobs:
        lockstep.finish(QUEUE, job.id, Complete(), job.revision)
    calls.claim()


def hand_off_several_runs(lockstep: Lockstep) -> None:
    """Hand off each run of a key. Handed-off runs do not count, and their end makes no room a second time."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue(*(f"{id}:k" for id in "abcdef"))
    first = calls.claim()
    calls.settle(first, HandOff())
    second = calls.claim()
    calls.settle(second, HandOff())
    calls.claim()
    calls.settle({**first, **second}, Complete())
    calls.claim()


def promote_another_key(lockstep: Lockstep) -> None:
    """Update a run with another key. The run counts under its own key, and its successor under none."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k")
    runs = calls.claim()
    calls.enqueue("a:m", "b:m", "c:k", "d:m")
    taken = calls.claim()
    calls.settle(runs, Complete())
    calls.settle(calls.claim(), Complete())
    calls.settle(taken, Complete())
    calls.claim()


def come_back_with_another_key(lockstep: Lockstep) -> None:
    """Update a run with another key, or with none. It comes back with the key of the update."""
    for action in (RetryLater(), Release()):
        for key in (":m", ""):
            calls = KeyedCalls(lockstep, per_key=1)
            calls.enqueue("a:k", "b:k", "c:m")
            runs = calls.claim(1)
            calls.claim()
            calls.enqueue("a" + key)
            calls.settle(runs, action)
            calls.claim()
            lockstep.forget(QUEUE, ["a", "b", "c"])


def change_the_key_of_a_waiting_job(lockstep: Lockstep) -> None:
    """Update passed-over jobs with another key, with none, and without data. Update others to a full key."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:k", "d:k", "e:k")
    calls.claim()
    calls.enqueue("b:m", "c")
    kept = Update(data=False)
    lockstep.enqueue(QUEUE, [EnqueueRequest(job=NewJob(id="d", data=JobData()), on_conflict=kept)])
    calls.claim()
    calls.enqueue("f", "g:n", "h")
    calls.enqueue("f:k", "g:k")
    calls.claim()
    calls.limit(per_key=None)
    calls.claim()


def amend_a_passed_over_job(lockstep: Lockstep) -> None:
    """Amend jobs of a full key: priority, payload, attributes and time. They keep their key."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:k", "d:k", "e:k")
    runs = calls.claim()
    calls.claim()
    lockstep.amend(QUEUE, "c", JobPatch(priority=1))
    lockstep.amend(QUEUE, "d", JobPatch(run_at=lockstep.now - 5, payload=b"amended"))
    lockstep.amend(QUEUE, "e", JobPatch(priority=2, delay=5, attributes={"a": b"1"}))
    lockstep.amend(QUEUE, "a", JobPatch(attributes={"a": b"1"}))
    for _ in range(4):
        calls.claim()
        runs = calls.settle_and_claim(runs, Complete())
        calls.pass_time(3)


def cancel_passed_over_jobs(lockstep: Lockstep) -> None:
    """Cancel and forget the first jobs of a full key. The next ones are taken in order."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:k", "d:k")
    runs = calls.claim()
    calls.claim()
    lockstep.cancel(QUEUE, ["b"], running=False)
    lockstep.forget(QUEUE, ["c"])
    calls.enqueue("c:k", "e:k")
    for _ in range(3):
        runs = calls.settle_and_claim(runs, Complete())


def retry_failed_with_keys(lockstep: Lockstep) -> None:
    """Fail jobs with keys and retry them while the key is full, and after that."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:m")
    calls.settle(calls.claim(), FAIL)
    calls.enqueue("c:k")
    runs = calls.claim()
    lockstep.retry_failed(QUEUE, ["a", "b"])
    calls.claim()
    calls.settle(runs, Complete())
    calls.claim()


def lower_and_raise(lockstep: Lockstep) -> None:
    """Lower per_key below the number of active runs, then raise it, and lift it."""
    calls = KeyedCalls(lockstep, per_key=3)
    calls.enqueue(*(f"{id}:k" for id in "abcdefghi"))
    runs = calls.claim()
    calls.limit(per_key=1)
    for id, fence in runs.items():
        calls.claim()
        calls.settle({id: fence}, Complete())
    calls.claim()
    calls.limit(per_key=2)
    calls.claim()
    calls.limit(per_key=None)
    calls.claim()


def limit_running_jobs(lockstep: Lockstep) -> None:
    """Set per_key while jobs run and wait. The runs from before count."""
    calls = KeyedCalls(lockstep)
    calls.enqueue("a:k", "b:k", "c:m", "d:k")
    runs = calls.claim(3)
    calls.limit(per_key=1)
    calls.claim()
    for id, fence in runs.items():
        calls.settle({id: fence}, Complete())
        calls.claim()


def limit_keys_and_all(lockstep: Lockstep) -> None:
    """Combine per_key and max_active. A job that has room under its key waits for room in the queue."""
    calls = KeyedCalls(lockstep, per_key=1, max_active=2)
    calls.enqueue("a:k", "b:k", "c:m", "d", "e:k", "f:n")
    runs = calls.claim()
    calls.claim()
    calls.settle({"a": runs["a"]}, Complete())
    calls.settle(calls.claim(), HandOff())
    calls.claim()
    calls.limit(max_active=0)
    calls.claim()
    calls.limit(max_active=None)
    calls.claim()


def order_priorities(lockstep: Lockstep) -> None:
    """Enqueue jobs of one key with several priorities. The first of them in the order gets the room."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:m")
    calls.enqueue("c:k", "d", priority=-5)
    calls.enqueue("e:k", "f:m", priority=5)
    runs = calls.claim(1)
    calls.claim(2)
    calls.enqueue("g:k", priority=1000)
    calls.enqueue("h:k", priority=-1000)
    for _ in range(4):
        runs = calls.settle_and_claim(runs, Complete(), 2)


def schedule_jobs_of_a_full_key(lockstep: Lockstep) -> None:
    """Schedule jobs of a full key. They fall due before and after it has room again."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k")
    calls.enqueue("b:k", delay=5)
    calls.enqueue("c:k", delay=20)
    calls.enqueue("d:m", delay=10)
    runs = calls.claim()
    calls.pass_time(5)
    calls.claim()
    calls.settle(runs, Complete())
    runs = calls.claim()
    calls.pass_time(1)
    calls.settle(runs, Complete())
    calls.claim()
    for _ in range(2):
        calls.pass_time(7)
        calls.claim()


def pause_with_a_full_key(lockstep: Lockstep) -> None:
    """Make room under a key of a paused queue, then resume it."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k", "c:k")
    runs = calls.claim()
    calls.limit(paused=True)
    calls.settle(runs, Complete())
    calls.claim()
    calls.limit(paused=False)
    calls.claim()


def follow_up_with_a_key(lockstep: Lockstep) -> None:
    """Complete runs with follow-ups that have keys, among them the key of the run and an active id."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:m")
    runs = calls.claim()
    then = (follow_up("c:k"), follow_up("d:k"), follow_up("b:k"))
    calls.settle({"a": runs["a"]}, Complete(then=then))
    calls.claim()
    calls.settle({"b": runs["b"]}, Complete())
    calls.claim()


def close_many_keys(lockstep: Lockstep) -> None:
    """Fill many keys, and free them in another order."""
    calls = KeyedCalls(lockstep, per_key=1)
    keys = [f"k{n}" for n in range(12)]
    calls.enqueue(*(f"{name}{n}:{name}" for n in range(3) for name in keys))
    runs = calls.claim(100)
    calls.claim(100)
    for id in sorted(runs, reverse=True)[:6]:
        calls.settle({id: runs[id]}, Complete())
    calls.claim(4)
    calls.claim(100)
    calls.limit(per_key=None)
    calls.claim(100)


def take_keys_of_all_lengths(lockstep: Lockstep) -> None:
    """Use keys with special characters, of 128 bytes, and keys that differ only in case or in their ends."""
    calls = KeyedCalls(lockstep, per_key=1)
    keys = ("k", "K", "k ", 'k{"}\n\\%', "é" * 64, "é" * 63 + "e", "0", "None")
    jobs = [(f"{n}{at}", key) for n in range(2) for at, key in enumerate(keys)]
    requests = [EnqueueRequest(job=NewJob(id=id, data=JobData(key=key))) for id, key in jobs]
    lockstep.enqueue(QUEUE, requests)
    runs = calls.claim(100)
    calls.claim(100)
    calls.settle(runs, Complete())
    calls.claim(100)


def reject_with_a_key(lockstep: Lockstep) -> None:
    """Enqueue a known id with an update that replaces data during its run, again and again."""
    calls = KeyedCalls(lockstep, per_key=1)
    calls.enqueue("a:k", "b:k")
    runs = calls.claim()
    for key in ("m", "n", "k", "m"):
        lockstep.enqueue(QUEUE, [EnqueueRequest(job=new_job(f"a:{key}"))])
    calls.settle(runs, RetryLater(delay=5))
    calls.claim()
    calls.enqueue("c:m")
    calls.claim()
    calls.pass_time(5)
    calls.claim()


PER_KEY_HISTORIES: Final[tuple[Callable[[Lockstep], None], ...]] = (
    pass_over_a_full_key,
    make_room_by_settling,
    make_room_by_settle_and_claim,
    make_room_by_reaping,
    make_room_by_dropping,
    make_room_by_id,
    hand_off_several_runs,
    promote_another_key,
    come_back_with_another_key,
    change_the_key_of_a_waiting_job,
    amend_a_passed_over_job,
    cancel_passed_over_jobs,
    retry_failed_with_keys,
    lower_and_raise,
    limit_running_jobs,
    limit_keys_and_all,
    order_priorities,
    schedule_jobs_of_a_full_key,
    pause_with_a_full_key,
    follow_up_with_a_key,
    close_many_keys,
    take_keys_of_all_lengths,
    reject_with_a_key,
)
