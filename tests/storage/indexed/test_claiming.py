"""Leases: alive before their end, then lost, and the jobs under an expired lease come back."""

from __future__ import annotations

import pytest

from dibs.model.job import Job, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import EnqueueRequest, HandOff, SettingsPatch, Settlement
from dibs.model.results import ClaimResult
from dibs.storage.indexed import by_id, claiming, enqueueing, settling, whole_queue
from dibs.storage.indexed.index import Index

ENDS_AT = 1100


@pytest.fixture
def index() -> Index:
    """Return an index with three waiting jobs and a lease from 1000 to 1100."""
    index = Index()
    index.now = 1000
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id=id)) for id in "abc"])
    claiming.grant(index, ["q"], "l", 100, "h")
    return index


def take(index: Index, limit: int = 1, lease: str = "l") -> ClaimResult:
    return claiming.claim(index, "q", lease, limit)


def settle(index: Index, job: Job, how: HandOff) -> str:
    assert job.run is not None
    return settling.settle(index, "q", [Settlement(id=job.id, fence=job.run.fence, action=how)], LIMITS)[
        0
    ].status


@pytest.mark.parametrize(("now", "lost"), [(ENDS_AT - 1, False), (ENDS_AT, True), (ENDS_AT + 1, True)])
def test_a_lease_is_alive_while_now_is_before_its_end(index: Index, now: int, lost: bool) -> None:  # noqa: FBT001
    """This holds for claim and renew, before and after a reap."""
    index.now = now

    assert lost is take(index).lost
    assert lost is not claiming.renew(index, ["q"], "l", 50)["q"].alive


def test_an_unknown_lease_is_lost_and_takes_nothing(index: Index) -> None:
    claim = take(index, lease="never granted")

    assert (True, ()) == (claim.lost, claim.jobs)


def test_a_renewal_never_lets_a_lease_end_earlier(index: Index) -> None:
    """A holder can rely on an `expires_at` that it received."""
    claiming.renew(index, ["q"], "l", 10_000)
    shorter = claiming.renew(index, ["q"], "l", 1)["q"]

    assert 11_000 == shorter.expires_at
    index.now = 10_999
    assert [] == claiming.reap(index, "q", 9)
    assert not take(index).lost


def test_renewed_many_times_it_is_reaped_at_its_last_end_and_not_before(index: Index) -> None:
    """The heap holds the first expiry; the lease has the current one."""
    take(index)
    for now in range(1010, 1090, 10):
        index.now = now
        claiming.renew(index, ["q"], "l", 100)
    index.now = 1179
    assert [] == claiming.reap(index, "q", 9)
    index.now = 1180

    assert [("a", "stalled")] == [(one.id, one.kind) for one in claiming.reap(index, "q", 9)]


def test_a_reap_takes_as_many_as_it_was_told_and_the_lease_goes_with_the_last(index: Index) -> None:
    take(index, 3)
    index.now = ENDS_AT
    reaped = [[one.id for one in claiming.reap(index, "q", 2)] for _ in range(3)]

    assert [["a", "b"], ["c"], []] == reaped
    assert {} == index.queue("q").leases


def test_a_partly_dropped_lease_is_lost_and_its_jobs_return_without_a_stall(index: Index) -> None:
    """After a drop that did not finish, reap releases the other jobs without a stall."""
    take(index, 3)

    assert {"q": 1} == claiming.drop(index, ["q"], "l", 2)
    assert take(index).lost
    assert not claiming.renew(index, ["q"], "l", 100)["q"].alive
    index.now = ENDS_AT
    assert [("c", "released")] == [(one.id, one.kind) for one in claiming.reap(index, "q", 9)]
    assert [0, 0, 0] == [slot.current.stalls for slot in index.queue("q").slots.values() if slot.current]


def test_a_handed_off_run_is_neither_reaped_nor_counted(index: Index) -> None:
    """Reap leaves it, and max_active does not count it."""
    whole_queue.configure(index, "q", SettingsPatch(max_active=1))
    [job] = take(index, 3).jobs
    assert () == take(index).jobs
    assert "handed_off" == settle(index, job, HandOff())

    assert ["b"] == [one.id for one in take(index, 3).jobs]
    index.now = ENDS_AT
    assert ["b"] == [one.id for one in claiming.reap(index, "q", 9)]


def test_a_paused_queue_gives_nothing_and_tells_of_nothing_to_come(index: Index) -> None:
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="d", delay=50))])
    assert 1050 == take(index).next_due
    whole_queue.configure(index, "q", SettingsPatch(paused=True))

    assert ((), None, False) == (take(index).jobs, take(index).next_due, take(index).lost)


@pytest.mark.parametrize("verb", ["drop", "reap"])
def test_a_run_asked_to_cancel_does_not_come_back(index: Index, verb: str) -> None:
    take(index)
    assert ["requested"] == by_id.cancel(index, "q", ["a"], running=True)
    assert ("a",) == claiming.renew(index, ["q"], "l", 50)["q"].cancel_requested
    if verb == "drop":
        claiming.drop(index, ["q"], "l", 9)
    else:
        index.now = ENDS_AT
        assert ["cancelled"] == [one.kind for one in claiming.reap(index, "q", 9)]

    assert ["cancelled"] == by_id.cancel(index, "q", ["a"], running=False)
    assert None is index.queue("q").slots["a"].current
