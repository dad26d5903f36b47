"""The oracle on short examples from the contract, with small numbers."""

from __future__ import annotations

import pytest

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    HandOff,
    Reject,
    Release,
    RetryLater,
    Settlement,
    Update,
)
from dibs.model.results import ReapedJob
from dibs_conformance.oracle import OneOf, Oracle
from dibs_conformance.verbs import cancel, claim, enqueue, grant, reap, settle


class SteppedOracle:
    """An oracle with a clock: each call is one step at a time in ms."""

    def __init__(self) -> None:
        self.oracle = Oracle()
        self.oracle.begin_call(0)
        grant.step(self.oracle, ["q"], "lease", 1000, "ann", 0)

    def enqueue(self, now: int = 0, how: Update | Reject = Update(), **job: object) -> str:  # noqa: B008
        at = self.oracle.begin_call(now)
        new = NewJob(id="a", **job)  # type: ignore[arg-type]
        return enqueue.step(self.oracle, "q", [EnqueueRequest(job=new, on_conflict=how)], at)[0].status

    def claim(self, now: int = 0) -> list[int]:
        jobs = claim.step(self.oracle, "q", "lease", 10, self.oracle.begin_call(now)).jobs
        return [job.run.fence for job in jobs if job.run is not None]

    def settle(self, fence: int, how: object, now: int = 0) -> object:
        settlement = Settlement(id="a", fence=fence, action=how)  # type: ignore[arg-type]
        [answer] = settle.step(self.oracle, "q", [settlement], self.oracle.begin_call(now))
        return answer if isinstance(answer, OneOf) else answer.status


@pytest.fixture
def stepped() -> SteppedOracle:
    return SteppedOracle()


def test_a_known_id_is_updated_in_place_and_beside_a_run_it_is_blocked(stepped: SteppedOracle) -> None:
    assert stepped.enqueue() == "queued"
    assert stepped.enqueue() == "updated"
    [_] = stepped.claim()
    assert stepped.enqueue() == "blocked"
    assert stepped.enqueue(how=Reject()) == "duplicate"


def test_a_list_of_updates_has_two_readings(stepped: SteppedOracle) -> None:
    """Contract 3, the fold law: an end uses all fields of the first update, a return only its time."""
    stepped.enqueue(data=JobData(payload=b"old"), run_at=0)
    [fence] = stepped.claim()
    stepped.enqueue(how=Update(data=False, run_at="later"), data=JobData(payload=b"new"), run_at=70)

    ended = stepped.oracle.get("q", "a").successor()
    stepped.settle(fence, RetryLater(run_at=90))
    back = stepped.oracle.get("q", "a").current

    assert ended is not None
    assert (b"new", 70) == (ended.data.payload, ended.run_at)
    assert back is not None
    assert (b"old", 90, 2) == (back.data.payload, back.run_at, back.enqueues)


def test_a_repeat_is_told_the_truth_and_a_stranger_is_lost(stepped: SteppedOracle) -> None:
    stepped.enqueue()
    [fence] = stepped.claim()

    answers = [stepped.settle(fence, how) for how in (Complete(), Complete(), Fail(error=Error(type="E")))]

    assert ["done", "done", "lost"] == answers


def test_after_its_expiry_an_outcome_may_or_may_not_remember_the_fence(stepped: SteppedOracle) -> None:
    stepped.enqueue()
    [fence] = stepped.claim()
    stepped.settle(fence, Complete(retention=OutcomeRetention(completed=5)))

    assert stepped.settle(fence, Complete(), now=4) == "done"
    assert isinstance(stepped.settle(fence, Complete(), now=5), OneOf)


def test_who_was_asked_to_cancel_never_comes_back(stepped: SteppedOracle) -> None:
    stepped.enqueue()
    [fence] = stepped.claim()
    cancel.step(stepped.oracle, "q", ["a"], stepped.oracle.begin_call(0), running=True)

    assert stepped.settle(fence, Release()) == "cancelled"
    assert stepped.settle(fence, Cancelled()) == "done"
    assert stepped.oracle.get("q", "a").current is None


def test_a_handed_off_run_can_only_end(stepped: SteppedOracle) -> None:
    stepped.enqueue()
    [fence] = stepped.claim()

    assert [stepped.settle(fence, how) for how in (HandOff(), HandOff(), Release())] == [
        "handed_off",
        "handed_off",
        "refused",
    ]
    assert stepped.oracle.list("q", "handed_off") == {"a"}


def test_an_expired_lease_is_reaped_with_its_job_and_a_live_one_is_not(stepped: SteppedOracle) -> None:
    stepped.enqueue()
    [fence] = stepped.claim()

    assert reap.step(stepped.oracle, "q", 10, [], stepped.oracle.begin_call(999)) == []
    reaped = reap.step(stepped.oracle, "q", 10, ["a"], stepped.oracle.begin_call(1000))
    assert [ReapedJob("a", fence, "stalled")] == reaped


def test_dropped_ranges_join_when_the_run_lies_below_both(stepped: SteppedOracle) -> None:
    """The rule is in section 1 of the contract, "When an enqueue is done"."""
    stepped.enqueue()
    stepped.claim()
    for _ in range(3):
        stepped.enqueue()
        cancel.step(stepped.oracle, "q", ["a"], stepped.oracle.begin_call(0), running=False)

    assert len(stepped.oracle.get("q", "a").dropped) == 1
    assert len(stepped.oracle.get("q", "a").ever_dropped) == 3


def test_of_the_due_the_most_urgent_runs_first_and_then_the_first_in_line() -> None:
    """Section 2 of the contract defines this order of claims."""
    stepped = SteppedOracle()
    now = stepped.oracle.begin_call(5)
    order = {"late": (0, 6), "second": (0, 5), "third": (0, 5), "first": (1, 5)}
    jobs = [NewJob(id=id, data=JobData(priority=p), run_at=at) for id, (p, at) in order.items()]
    enqueue.step(stepped.oracle, "q", [EnqueueRequest(job=job) for job in jobs], now)

    taken = claim.step(stepped.oracle, "q", "lease", 10, stepped.oracle.begin_call(5))

    assert [job.id for job in taken.jobs] == ["first", "second", "third"]
    assert taken.next_due == 6
