"""The verbs by id: the ids that wake waiters, and the copy of what a caller passed."""

from __future__ import annotations

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.indexed import by_id, enqueueing
from dibs.storage.indexed.index import Index

ATTRIBUTES = {"k": b"1"}


@pytest.fixture
def index() -> Index:
    """Return an index with a waiting job `a`."""
    index = Index()
    job = NewJob(id="a", data=JobData(attributes=dict(ATTRIBUTES)))
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=job)])
    index.end_step()
    return index


def test_forgetting_an_id_wakes_its_waiters(index: Index) -> None:
    """Otherwise its waiters would notice only at the next slow poll that no outcome will come."""
    by_id.forget(index, "q", ["a"])

    assert [["a"]] == [changes.ended for _, changes in index.end_step()]


def test_attributes_changed_by_their_caller_later_are_kept_as_they_were() -> None:
    index, attributes = Index(), dict(ATTRIBUTES)
    job = NewJob(id="a", data=JobData(attributes=attributes))
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=job)])
    attributes["k"] = b"2"
    stored = index.find_queue("q").slots["a"].current

    assert stored is not None
    assert ATTRIBUTES == stored.data.attributes
