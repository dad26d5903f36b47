"""The index of a queue: its derived data equals a scan of the slots, and claims are ordered and cheap."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.model.job import EMPTY, JobData, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.indexed import claiming, enqueueing, settling
from dibs.storage.indexed.index import Index
from tests.storage.indexed.actions import Action, apply, sequences
from tests.storage.indexed.contents import contents, derived, derived_by_scan


@pytest.mark.long
@settings(max_examples=150)
@given(sequences)
def test_the_derived_state_equals_a_scan_of_the_slots(sequence: list[Action]) -> None:
    """After every step: heaps, counts, the jobs of leases, and expired outcomes."""
    index = Index()
    for one in sequence:
        apply(index, one)
        index.end_step()
        for name in list(index.queues):
            queue = index.queue(name)

            assert derived_by_scan(queue) == derived(queue)
            assert all(slot.current or slot.outcome for slot in queue.slots.values())
            assert queue.log.size == sum(len(entry.packed) for entry in queue.log)


@pytest.mark.long
@settings(max_examples=150)
@given(sequences, st.lists(sequences.map(lambda s: s[:3]), max_size=4))
def test_an_undone_step_leaves_no_change(sequence: list[Action], undone: list[list[Action]]) -> None:
    """A step that cannot be written leaves no change, at any point."""
    plain, tried = Index(), Index()
    places = {len(sequence) * (i + 1) // (len(undone) + 1): steps for i, steps in enumerate(undone)}
    for place, one in enumerate(sequence):
        for index in (plain, tried):
            apply(index, one)
            index.end_step()
        if place in places:
            undo(tried, places[place])

        assert contents(plain) == contents(tried)
    assert plain.number == tried.number


def undo(index: Index, steps: list[Action]) -> None:
    number = index.number
    for one in steps:
        if one[0] != "tick":
            apply(index, one)
    index.undo(index.end_step(), number)


def test_an_undone_first_step_leaves_no_queue() -> None:
    index = Index()
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="a"))])
    index.undo(index.end_step(), 0)

    assert {} == contents(index)


READS: dict[str, Action] = {
    "claim": ("claim", ("q", 1)),
    "renew": ("renew", ("q", 1)),
    "drop": ("drop", ("q", 1)),
    "reap": ("reap", ("q", 1)),
    "prune": ("prune", ("q", 1)),
    "settle": ("settle", ("q", [Complete()])),
    "cancel": ("cancel", ("q", ["a"], True)),
    "forget": ("forget", ("q", "a")),
    "retry_failed": ("retry_failed", ("q", "a")),
}


@pytest.mark.parametrize("one", READS.values(), ids=READS)
def test_a_verb_on_an_unknown_queue_does_not_create_it(one: Action) -> None:
    """Names of queues come from callers: a million unknown names must not fill the memory."""
    index = Index()
    apply(index, one)

    assert {} == index.queues


times = st.integers(0, 3)
lines = st.lists(st.tuples(st.sampled_from((-1, 0, 1)), times), max_size=12)


def calls(work: Callable[[], object]) -> int:
    """Return the number of calls of Python and C functions, which does not depend on the machine."""
    count = 0

    def tally(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    # Hypothesis has a callback that the garbage collector calls. It would count as well.
    gc.disable()
    sys.setprofile(tally)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def filled(scheduled: int, held: int = 0) -> Index:
    """Return an index with scheduled jobs of a higher priority, some held jobs, and ten due jobs."""
    index = Index()
    index.now = 10
    claiming.grant(index, ["q"], "l", 1000, "h")
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id=f"h{i}")) for i in range(held)])
    if held:
        claiming.claim(index, "q", "l", held)
    later = JobData(priority=1000)
    for i in range(scheduled):
        enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id=f"s{i}", data=later, run_at=99 + i))])
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id=f"d{i}")) for i in range(10)])
    index.end_step()
    return index


def claim_and_settle(index: Index) -> None:
    for job in claiming.claim(index, "q", "l", 5).jobs:
        assert job.run is not None
        settling.settle(index, "q", [Settlement(id=job.id, fence=job.run.fence, action=Complete())], LIMITS)


def test_scheduled_jobs_of_a_higher_priority_cost_a_claim_nothing() -> None:
    """Contract 2: five claims make as many calls among 20 scheduled jobs as among 20,000."""
    few, many = filled(20), filled(20_000)

    assert calls(lambda: claim_and_settle(few)) == calls(lambda: claim_and_settle(many))


@pytest.mark.chaos
def test_a_million_scheduled_jobs_of_a_higher_priority_cost_a_claim_nothing() -> None:
    few, many = filled(20), filled(1_000_000)

    assert calls(lambda: claim_and_settle(few)) == calls(lambda: claim_and_settle(many))


def test_a_reap_that_finds_nothing_costs_the_same_whatever_is_held() -> None:
    few, many = filled(0, held=2), filled(0, held=2000)

    assert calls(lambda: claiming.reap(few, "q", 100)) == calls(lambda: claiming.reap(many, "q", 100))


def test_endless_updates_do_not_grow_the_heaps() -> None:
    """Stale entries of the heaps are removed once they are the larger part."""
    index = Index()
    for i in range(20_000):
        enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="a", run_at=i))])
        index.end_step()
    queue = index.queue("q")

    assert 2000 > len(queue.due) + len(queue.scheduled)
    assert derived_by_scan(queue) == derived(queue)


def test_endless_ends_do_not_grow_the_heaps() -> None:
    """An id that ends every second for a week is stored as one id."""
    index = Index()
    claiming.grant(index, ["q"], "l", 10**9, "h")
    for _ in range(5000):
        enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="a"))])
        claim_and_settle(index)
        index.end_step()

    assert 2000 > len(index.queue("q").outcomes.expiries)
    assert 2000 > len(index.queue("q").due)


def test_what_is_put_as_empty_is_gone() -> None:
    index = filled(1)
    index.queue("q").put("d0", EMPTY)

    assert "d0" not in index.queue("q").slots
    assert derived_by_scan(index.queue("q")) == derived(index.queue("q"))
