"""The state of an enqueue: pending, or done in exactly one way (contract 1, When an enqueue is done)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model import transitions
from dibs.model.job import EMPTY, EndKind, Job, JobData, NewJob, Outcome, Slot, Successor
from dibs.model.requests import Update
from dibs.model.rules import TicketState, ticket_state


def job(first: int, last: int) -> Job:
    return Job(id="a", data=JobData(), run_at=0, enqueued_at=0, seq=first, first=first, revision=last)


def successor(first: int, last: int) -> Successor:
    return Successor(
        data=JobData(), replaces=True, run_at=0, lo=None, hi=None, resets=True, enqueued_at=0, seq=first,
        first=first, revision=last,
    )  # fmt: skip


def outcome(kind: EndKind, first: int, last: int, expires_at: int | None = None) -> Outcome:
    return Outcome(kind=kind, fence=1, first=first, revision=last, ended_at=0, expires_at=expires_at)


@pytest.mark.parametrize("revision", [3, 5, 7, 8, 9])
def test_in_the_range_of_current_or_successor_it_is_pending(revision: int) -> None:
    slot = Slot(job(3, 7), successor(8, 9), outcome("completed", 1, 2))

    assert TicketState("pending") == ticket_state(slot, revision)


@pytest.mark.parametrize("kind", ["completed", "failed", "cancelled"])
@pytest.mark.parametrize("revision", [1, 2])
def test_in_the_range_of_the_outcome_it_ended_that_way(kind: EndKind, revision: int) -> None:
    kept = outcome(kind, 1, 2)

    assert TicketState(kind, kept) == ticket_state(Slot(job(3, 3), None, kept), revision)


@pytest.mark.parametrize("revision", [0, 3, 99])
def test_outside_every_range_its_outcome_is_not_kept(revision: int) -> None:
    """A waiter gets `not_kept` instead of the outcome of another enqueue, and does not wait for ever."""
    state = ticket_state(Slot(None, None, outcome("completed", 1, 2)), revision)

    assert TicketState("not_kept", later="ended" if revision < 1 else None) == state
    assert TicketState("not_kept") == ticket_state(EMPTY, revision)


@pytest.mark.parametrize(("now", "kind"), [(9, "completed"), (10, "not_kept"), (11, "not_kept")])
def test_an_outcome_counts_while_now_is_before_its_expiry(now: int, kind: str) -> None:
    assert kind == ticket_state(Slot(None, None, outcome("completed", 1, 1, expires_at=10)), 1, now).kind


def test_a_dropped_range_wins_over_the_run_around_it() -> None:
    """A cancel dropped the successor. The enqueues of the run before and after it stay pending."""
    slot = Slot(job(1, 9), None, None, ((4, 6),))

    assert ["pending", "cancelled", "cancelled", "pending"] == [
        ticket_state(slot, r).kind for r in (3, 4, 6, 7)
    ]


def test_a_dropped_range_wins_over_the_outcome_around_it() -> None:
    slot = Slot(None, None, outcome("completed", 1, 9), ((4, 6),))

    assert ["completed", "cancelled", "completed"] == [ticket_state(slot, r).kind for r in (1, 5, 9)]


def dropped(slot: Slot, number: int, now: int = 0) -> Slot:
    """Enqueue during the run, then cancel: the range of the successor becomes a dropped range."""
    blocked = transitions.block(slot, NewJob(id="a"), Update(), now, number)
    assert blocked.successor is not None
    return transitions.drop_successor(blocked, blocked.successor, now)


def test_ranges_dropped_one_after_another_become_one() -> None:
    """Two dropped ranges are joined if the current has no revision between them, also over a gap."""
    slot = dropped(dropped(Slot(job(1, 1)), 5), 9)

    assert ((5, 9),) == slot.dropped


def test_at_most_eight_ranges_are_kept_and_the_oldest_goes_first() -> None:
    """An enqueue in a forgotten range has the state of the run around it."""
    slot = Slot(job(1, 1))
    for number in range(10, 101, 10):
        slot = dropped(slot, number)
        current = slot.current
        assert current is not None
        slot = Slot(transitions.update(slot, current, NewJob(id="a"), Update(), 0, number + 5).current, None,
                    slot.outcome, slot.dropped)  # fmt: skip

    assert tuple((n, n) for n in range(30, 101, 10)) == slot.dropped
    assert ["pending", "pending", "cancelled"] == [ticket_state(slot, r).kind for r in (10, 20, 30)]


def test_a_dropped_range_behind_a_run_that_is_gone_may_be_forgotten() -> None:
    """The id keeps the latest dropped range, and those inside the range of the current or the outcome."""
    slot = dropped(Slot(job(10, 10), None, outcome("failed", 4, 6), ((2, 2), (5, 5))), 12)

    assert ((5, 5), (12, 12)) == slot.dropped


@given(st.lists(st.sampled_from(("enqueue", "drop", "back")), max_size=14))
def test_each_enqueue_reads_as_what_became_of_it(acts: list[str]) -> None:
    """The dropped ranges agree with a naive list of all enqueues during a run, for up to eight ranges."""
    slot, book, beside = Slot(job(1, 1)), {1: "pending"}, list[int]()
    for number, act in enumerate(acts, 2):
        current = slot.current
        assert current is not None
        if act == "enqueue":
            slot = transitions.block(slot, NewJob(id="a"), Update(), 0, number)
            book[number] = "pending"
            beside.append(number)
        elif act == "drop" and slot.successor is not None:
            slot = transitions.drop_successor(slot, slot.successor, 0)
            book |= dict.fromkeys(beside, "cancelled")
            beside = []
        elif act == "back":
            slot, beside = transitions.retry(slot, current, "error", 0, number, None), []

    assert book == {revision: ticket_state(slot, revision).kind for revision in book}
