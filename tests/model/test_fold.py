"""The fold law: a successor equals the list of its updates, for a run that ends and one that comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dibs.model import fold
from dibs.model.job import Error, Job, JobData, NewJob, Successor
from dibs.model.requests import RunAtRule, Update

RULES: tuple[RunAtRule, ...] = ("always", "never", "later", "earlier")
AMONG = st.integers(0, 6)

resets = st.sampled_from((None, True, False))
updates = st.one_of(
    st.builds(Update, data=st.booleans(), run_at=st.sampled_from(RULES), reset_counts=resets),
    st.builds(Update, run_at=st.sampled_from(RULES), reset_counts=resets, create=st.sampled_from((False,))),
)
#: One enqueue during a run: its update rule, payload, priority and run_at.
entries = st.tuples(updates, st.binary(max_size=1), st.integers(-1, 1), AMONG)
lists = st.lists(entries, min_size=1, max_size=7)

Entry = tuple[Update, bytes, int, int]


def returned() -> Job:
    """Return a job whose run came back, before the updates are applied."""
    return Job(
        id="a", data=JobData(payload=b"old"), run_at=3, enqueued_at=1, seq=9, first=2, revision=4, enqueues=2,
        attempts=5, retries=3, stalls=2, timeouts=1, error=Error(type="Oops"),
    )  # fmt: skip


def folded(items: list[Entry], now: int = 50) -> Successor:
    how, payload, priority, at = items[0]
    successor = fold.start_successor(new_job(payload, priority), how, at, now, 100)
    for later, (how, payload, priority, at) in enumerate(items[1:], 1):
        new = new_job(payload, priority)
        successor = fold.add_update(successor, new, how, at, now + later, 100 + later)
    return successor


def new_job(payload: bytes, priority: int) -> NewJob:
    return NewJob(id="a", data=JobData(payload=payload, priority=priority))


def naive(job: Job, item: Entry, number: int) -> Job:
    """Apply one update to a waiting job, as the contract describes it."""
    how, payload, priority, at = item
    replaces = how.data is True or (how.data is None and how.create)
    resets = replaces if how.reset_counts is None else how.reset_counts
    times = {"always": at, "never": job.run_at, "later": max(job.run_at, at), "earlier": min(job.run_at, at)}
    job = replace(job, run_at=times[how.run_at], revision=number, enqueues=job.enqueues + 1)
    if replaces:
        job = replace(job, data=JobData(payload=payload, priority=priority))
    return replace(job, attempts=0, retries=0, stalls=0, timeouts=0, error=None) if resets else job


def fresh(item: Entry, now: int, number: int) -> Job:
    """Return the job that the first update makes of an empty id: the update is taken whole."""
    _, payload, priority, at = item
    data = JobData(payload=payload, priority=priority)
    return Job(id="a", data=data, run_at=at, enqueued_at=now, seq=number, first=number, revision=number)


def made_of_nothing(items: list[Entry]) -> Job | None:
    """Return the job that the list makes of an empty id; None if no update of it creates a job."""
    job = None
    for later, item in enumerate(items):
        if job is not None:
            job = naive(job, item, 100 + later)
        elif item[0].create:
            job = fresh(item, 50 + later, 100 + later)
    return job


@given(lists)
def test_a_run_that_ends_leaves_what_the_list_makes_of_an_empty_id(items: list[Entry]) -> None:
    """If the run ends, the updates are applied in order to an empty id. The job has the range of all."""
    expected, successor = made_of_nothing(items), folded(items)

    assert successor.creates == (expected is not None)
    if expected is not None:
        expected = replace(expected, first=100, enqueues=len(items))
        assert expected == fold.job_after_end("a", successor)


@given(lists)
def test_a_run_that_comes_back_meets_the_list_in_order(items: list[Entry]) -> None:
    """If the run comes back, the updates are applied in order to the returned job."""
    expected = returned()
    for number, item in enumerate(items, 100):
        expected = naive(expected, item, number)

    assert expected == fold.job_after_return(returned(), folded(items))


@given(st.lists(st.tuples(st.sampled_from(RULES), AMONG), max_size=8), AMONG)
def test_any_sequence_of_rules_is_a_clamp(rules: list[tuple[RunAtRule, int]], start: int) -> None:
    """Any sequence of always, never, later and earlier equals min(max(r, lo), hi)."""
    expected, lo, hi = start, None, None
    for rule, at in rules:
        expected = fold.move_run_at(expected, rule, at)
        lo, hi = fold.narrow_clamp(lo, hi, rule, at)

    assert expected == fold.clamp(start, lo, hi)


def test_a_memo_goes_with_the_data_that_it_belongs_to() -> None:
    """An update that replaces data drops the memo of the job that comes back; another update keeps it."""
    job = replace(returned(), data=JobData(payload=b"old", memo=b"page 7"))
    keeps = fold.start_successor(new_job(b"new", 0), Update(data=False), 9, 50, 100)
    replaces = fold.add_update(keeps, new_job(b"newer", 0), Update(), 9, 51, 101)

    assert b"page 7" == fold.job_after_return(job, keeps).data.memo
    assert fold.job_after_return(job, replaces).data.memo is None
    assert fold.job_after_end("a", keeps).data.memo is None
