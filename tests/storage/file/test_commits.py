"""Replaying commits gives the same index, with or without a checkpoint in between."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.model.job import JobData, NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.file import commits
from dibs.storage.indexed import claiming, enqueueing, settling
from dibs.storage.indexed.index import Index
from tests.storage.indexed.actions import Action, apply, sequences
from tests.storage.indexed.contents import contents, stored


def commit_all(index: Index, sequence: list[Action]) -> list[bytes]:
    """Apply each act as one step, and return the commits of the steps."""
    bodies = []
    for one in sequence:
        apply(index, one)
        if step := index.end_step():
            bodies.append(commits.encode(index, step))
    return bodies


def replayed(bodies: Iterable[bytes], onto: Index | None = None) -> Index:
    index = Index() if onto is None else onto
    for body in bodies:
        commits.apply(index, body)
        index.end_step()
    return index


def same(one: Index, other: Index) -> tuple[Any, Any]:
    """Return both indexes as plain values at the same time. A replay sets the clock to its last commit."""
    one.now = other.now = max(one.now, other.now)
    return contents(one), contents(other)


@pytest.mark.long
@settings(max_examples=100)
@given(sequences)
def test_replaying_the_commits_gives_the_same_index(sequence: list[Action]) -> None:
    original = Index()
    copy = replayed(commit_all(original, sequence))
    expected, found = same(original, copy)

    assert expected == found
    assert original.number == copy.number


@pytest.mark.long
@settings(max_examples=100)
@given(sequences, sequences)
def test_a_checkpoint_at_any_point_replaces_the_commits_before_it(
    before: list[Action], after: list[Action]
) -> None:
    original = Index()
    commit_all(original, before)
    copy = replayed(commits.snapshot(original))
    replayed(commit_all(original, after), onto=copy)
    expected, found = same(original, copy)

    assert expected == found
    assert original.number == copy.number


@settings(max_examples=50)
@given(sequences)
def test_a_checkpoint_of_a_checkpoint_is_equal(sequence: list[Action]) -> None:
    original = Index()
    commit_all(original, sequence)
    once = list(commits.snapshot(original))

    assert once == list(commits.snapshot(replayed(once)))


@settings(max_examples=50)
@given(sequences, st.integers(0, 40))
def test_a_process_that_starts_late_has_the_same_index(sequence: list[Action], late: int) -> None:
    """A process that read every commit and a process that started with a checkpoint agree."""
    original = Index()
    bodies = commit_all(original, sequence[:late])
    checkpoint = list(commits.snapshot(original))
    bodies_after = commit_all(original, sequence[late:])
    early = replayed(bodies + bodies_after)
    joined = replayed(bodies_after, onto=replayed(checkpoint))

    assert [stored(early.queue(name)) for name in ("q", "r") if name in early.queues] == [
        stored(joined.queue(name)) for name in ("q", "r") if name in early.queues
    ]


PAYLOAD = b"p" * 10_000


def test_a_payload_is_written_once() -> None:
    """The commits of a claim and an end refer to the payload in an earlier commit."""
    index = Index()
    claiming.grant(index, ["q"], "l", 10**6, "h")
    index.end_step()
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="a", data=JobData(payload=PAYLOAD)))])
    written = len(commits.encode(index, index.end_step()))
    [job] = claiming.claim(index, "q", "l", 1).jobs
    moved = len(commits.encode(index, index.end_step()))
    assert job.run is not None
    settling.settle(index, "q", [Settlement(id="a", fence=job.run.fence, action=Complete())], LIMITS)
    ended = len(commits.encode(index, index.end_step()))

    assert written > len(PAYLOAD)
    assert 500 > moved
    assert 500 > ended


def test_the_clock_and_the_numbers_never_step_back_in_a_replay() -> None:
    """The clock of a process may be ahead of the commits that it reads."""
    original, ahead = Index(), Index()
    bodies = commit_all(original, [("tick", (5,)), ("grant", (10,))])
    ahead.now, ahead.number = 99, 10**9
    replayed(bodies, onto=ahead)

    assert (99, 10**9) == (ahead.now, ahead.number)


def test_lead_and_ahead_are_in_commits_and_checkpoints() -> None:
    original = Index()
    original.now, original.lead, original.ahead = 5_000, 2_000, 3_000
    bodies = commit_all(original, [("grant", (10,))])

    for index in (replayed(bodies), replayed(commits.snapshot(original))):
        assert (2_000, 3_000) == (index.lead, index.ahead)
