"""Keys and limits: per_key, rate and key_rate decide about claims, next_due and the waits for work."""

from __future__ import annotations

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import (
    Complete,
    EnqueueRequest,
    Release,
    SettingsPatch,
    SettleAction,
    Settlement,
    StartRate,
)
from dibs.model.results import ClaimResult
from dibs.storage.file import commits
from dibs.storage.indexed import by_id, claiming, enqueueing, settling, whole_queue
from dibs.storage.indexed.index import Index
from dibs.storage.indexed.waiters import Waiter, Wakeups
from tests.storage.file.test_commits import replayed
from tests.storage.indexed.test_queue_index import calls

NOW = 1000


@pytest.fixture
def index() -> Index:
    return limited(per_key=1)


def limited(**settings: object) -> Index:
    """Return an index whose queue has these settings and a long lease."""
    index = Index()
    index.now = NOW
    whole_queue.configure(index, "q", SettingsPatch(**settings))  # type: ignore[arg-type]
    claiming.grant(index, ["q"], "l", 10_000_000, "h")
    index.end_step()
    return index


def put(index: Index, *ids: str, key: str | None = "k", delay: int | None = None, priority: int = 0) -> None:
    data = JobData(key=key, priority=priority)
    jobs = [NewJob(id=id, data=data, delay=delay) for id in ids]
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=job) for job in jobs])
    index.end_step()


def claim(index: Index, limit: int = 9, lease: str = "l") -> ClaimResult:
    answer = claiming.claim(index, "q", lease, limit)
    index.end_step()
    return answer


def taken(index: Index, limit: int = 9) -> list[str]:
    return [job.id for job in claim(index, limit).jobs]


def settle(index: Index, id: str, action: SettleAction) -> None:
    job = index.queue("q").slots[id].current
    assert job is not None
    assert job.run is not None
    settling.settle(index, "q", [Settlement(id=id, fence=job.run.fence, action=action)], LIMITS)
    index.end_step()


def token(index: Index) -> int:
    return index.find_queue("q").work_version


def configure(index: Index, **settings: object) -> None:
    whole_queue.configure(index, "q", SettingsPatch(**settings))  # type: ignore[arg-type]
    index.end_step()


def test_an_end_wakes_nobody_if_no_job_of_its_key_waits(index: Index) -> None:
    put(index, "a")
    put(index, "b", key="other")
    claim(index)
    before = token(index)
    settle(index, "a", Complete())

    assert before == token(index)


def test_a_job_of_a_full_key_is_no_reason_to_wake(index: Index) -> None:
    """Neither an arrival nor a scheduled job that falls due wakes; a wait without a token goes on, too."""
    put(index, "a")
    claim(index)
    put(index, "later", delay=10)
    before = token(index)
    put(index, "b")
    index.now += 20
    queue = index.queue("q")

    assert before == token(index)
    assert not queue.has_due()
    assert not Wakeups().has_changed(FakeWaiter(), index, {})
    settle(index, "a", Complete())
    assert Wakeups().has_changed(FakeWaiter(), index, {})


class FakeWaiter(Waiter):
    """A wait for work in the queue q, without an event loop."""

    def __init__(self) -> None:
        self.watch, self.queues = "work", ["q"]


def test_nothing_is_to_come_if_only_a_closed_clock_is_left() -> None:
    """A clock that holds back no job is no reason to wake."""
    index = limited(rate=StartRate(1, 10), key_rate=StartRate(1, 50))
    put(index, "a")
    answer = claim(index)
    assert answer.next_due is None
    index.now = NOW + 60
    index.queue("q")

    assert answer.token == str(token(index))


def with_full_key(waiting: int) -> Index:
    """Return an index with jobs of a full key in front of five jobs without a key."""
    index = limited(per_key=1, key_rate=StartRate(1, 10_000))
    put(index, *(f"k{i}" for i in range(waiting + 1)), priority=9)
    assert ["k0"] == taken(index, 1)
    put(index, *"abcde", key=None)
    return index


def test_the_jobs_of_a_full_key_cost_a_claim_nothing() -> None:
    few, many = with_full_key(10), with_full_key(10_000)

    assert calls(lambda: taken(few)) == calls(lambda: taken(many))
    assert calls(lambda: settle(few, "a", Complete())) == calls(lambda: settle(many, "a", Complete()))


def test_jobs_that_come_and_go_under_a_closed_key_do_not_grow_the_heaps() -> None:
    index = limited(key_rate=StartRate(1, 10_000))
    put(index, "a")
    claim(index)
    for i in range(5000):
        put(index, "b", priority=i % 7)
        if i % 10 == 0:
            by_id.cancel(index, "q", ["b"], running=False)
    lines = index.queue("q").key_lines

    assert 100 > len(lines._openings) + sum(len(line.due) for line in lines.by_key.values())
    by_id.forget(index, "q", ["a", "b"])
    assert {} == lines.by_key


def test_another_process_closes_a_key_whose_job_is_claimed_again_in_one_step() -> None:
    """The commit of a turn may return a job and claim it again: one lease and one id, but two runs."""
    original = limited(key_rate=StartRate(1, 10, 2))
    copy = replayed(commits.snapshot(original))
    data = JobData(key="k")
    enqueueing.enqueue(original, "q", [EnqueueRequest(job=NewJob(id=id, data=data)) for id in "ab"])
    claiming.claim(original, "q", "l", 1)
    replayed([commits.encode(original, original.end_step())], onto=copy)
    job = original.queue("q").slots["a"].current
    assert job is not None
    assert job.run is not None
    settlement = Settlement(id="a", fence=job.run.fence, action=Release())
    settling.settle(original, "q", [settlement], LIMITS)
    claiming.claim(original, "q", "l", 1)
    replayed([commits.encode(original, original.end_step())], onto=copy)

    assert [] == taken(original)
    assert [] == taken(copy)


def test_an_undone_configure_closes_the_keys_again() -> None:
    """The clocks that it removed are back, and the keys that they close are closed."""
    index = limited(key_rate=StartRate(1, 10))
    put(index, "a", "b")
    put(index, "free", key=None)
    assert ["a"] == taken(index, 1)
    number = index.number
    whole_queue.configure(index, "q", SettingsPatch(key_rate=None))
    assert index.queue("q").has_due()
    index.undo(index.end_step(), number)

    answer = claim(index)
    assert ["free"] == [job.id for job in answer.jobs]
    assert NOW + 10 == answer.next_due
