"""The fast path of plain runs stores the same as the general path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings

from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, EnqueueRequest, FollowUp, Settlement
from dibs.storage.indexed import claiming, enqueueing, plain_runs, settling
from dibs.storage.indexed.index import Index, Step
from tests.storage.indexed.actions import Action, apply, sequences
from tests.storage.indexed.contents import contents


def apply_on_general_path(index: Index, action: Action) -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain_runs, "start", lambda *_: False)
        patch.setattr(plain_runs, "complete", lambda *_: False)
        return apply(index, action)


def changes_of(step: Step) -> list[tuple[str, dict[str, Any]]]:
    return [
        (queue.name, {name: getattr(changes, name) for name in changes.__slots__}) for queue, changes in step
    ]


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(sequences)
def test_each_action_changes_the_same_on_both_paths(sequence: list[Action]) -> None:
    fast, general = Index(), Index()
    for action in sequence:
        answers = apply(fast, action), apply_on_general_path(general, action)
        steps = fast.end_step(), general.end_step()

        assert answers[0] == answers[1]
        assert changes_of(steps[0]) == changes_of(steps[1])
        assert contents(fast) == contents(general)
        assert [q.work_version for q in fast.queues.values()] == [
            q.work_version for q in general.queues.values()
        ]


#: Runs that are plain, and runs that have one thing more: the second enqueue is during the run.
COMPLETIONS = {
    "plain": (None, Complete(result=b"1"), False),
    "key": ("k", Complete(), False),
    "follow-up": (None, Complete(then=(FollowUp(queue="next", job=NewJob(id="b")),)), False),
    "retention": (None, Complete(retention=OutcomeRetention(completed=5)), False),
    "successor": (None, Complete(), True),
}


def complete_twice(index: Index, key: str | None, action: Complete, *, blocked: bool) -> Iterator[object]:
    """Run a job twice, so that its second run has an outcome. Yield what each step changed."""
    claiming.grant(index, ["q"], "l", 100, "h")
    requests = [EnqueueRequest(job=NewJob(id="a", data=JobData(key=key)))]
    for _ in range(2):
        enqueueing.enqueue(index, "q", requests)
        yield changes_of(index.end_step())
        [job] = claiming.claim(index, "q", "l", 1).jobs
        yield changes_of(index.end_step())
        if blocked:
            enqueueing.enqueue(index, "q", requests)
            yield changes_of(index.end_step())
        assert job.run is not None
        [result] = settling.settle(
            index, "q", [Settlement(id="a", fence=job.run.fence, action=action)], LIMITS
        )
        assert "done" == result.status
        yield changes_of(index.end_step())
        yield contents(index)


@pytest.mark.parametrize("name", COMPLETIONS)
def test_a_completion_changes_the_same_on_both_paths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key, action, blocked = COMPLETIONS[name]
    fast = list(complete_twice(Index(), key, action, blocked=blocked))
    monkeypatch.setattr(plain_runs, "start", lambda *_: False)
    monkeypatch.setattr(plain_runs, "complete", lambda *_: False)

    assert list(complete_twice(Index(), key, action, blocked=blocked)) == fast


def test_a_job_without_a_key_takes_the_fast_path() -> None:
    index = Index()
    claiming.grant(index, ["q"], "l", 100, "h")
    enqueueing.enqueue(index, "q", [EnqueueRequest(job=NewJob(id="a"))])
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("dibs.storage.indexed.queue_index.QueueIndex.put")
        [job] = claiming.claim(index, "q", "l", 1).jobs
        fence = job.run.fence if job.run else 0
        [result] = settling.settle(
            index, "q", [Settlement(id="a", fence=fence, action=Complete(result=b"1"))], LIMITS
        )

    assert "done" == result.status
