"""The fast path of plain runs stores the same as the general path."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from dibs.model.job import NewJob
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, EnqueueRequest, Settlement
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
