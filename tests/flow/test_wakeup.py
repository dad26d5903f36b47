"""Wake-ups: hints, the attribute of nodes, and the single wake-up of a request of a worker."""

from __future__ import annotations

import msgspec
import pytest

from dibs.client.calls.handler import Handler
from dibs.client.options.serde import JSON
from dibs.model.job import ActiveRun, Error, Job, JobData
from dibs.model.requests import Cancelled, Complete, Fail
from dibs.model.wakeup import (
    EVALUATIONS,
    FLOW_ATTRIBUTE,
    Hint,
    flow_of,
    node_number,
    with_wake_up,
)
from dibs.worker.dispatch.flow_wakeups import fold_wake_ups
from dibs.worker.execution.invocation import Invocation

FLOW = {FLOW_ATTRIBUTE: b'"import"'}


@pytest.mark.parametrize("raw", [b"1", b"null", b'""', b'"' + b"x" * 600 + b'"', b"broken"])
def test_an_attribute_that_no_flow_has_set_is_ignored(raw: bytes) -> None:
    assert flow_of({FLOW_ATTRIBUTE: raw}) is None
    assert Complete() == with_wake_up(Complete(), "a", {FLOW_ATTRIBUTE: raw})


def test_an_end_wakes_the_flow_and_a_failure_names_the_node() -> None:
    completed = with_wake_up(Complete(), "import/abc/7", FLOW)
    failed = with_wake_up(Fail(error=Error(type="E")), "import/abc/7", FLOW)

    assert [(EVALUATIONS, "import", b"null")] == [
        (one.queue, one.job.id, one.job.data.payload) for one in completed.then
    ]
    assert Hint(node=7) == msgspec.json.decode(failed.then[0].job.data.payload, type=Hint)
    assert Cancelled() == with_wake_up(Cancelled(), "import/abc/7", FLOW)


@pytest.mark.parametrize(
    ("id", "number"), [("import/abc/7", 7), ("import/abc/x", None), ("other/abc/7", None), ("own", None)]
)
def test_only_ids_of_the_flow_have_a_number(id: str, number: int | None) -> None:
    assert number == node_number("import", id)


def run(id: str, attributes: dict[str, bytes]) -> Invocation:
    """Return a run that ends as completed."""
    active = ActiveRun(fence=1, lease="l", holder="h", claimed_at=0)
    data = JobData(attributes=attributes)
    job = Job(id=id, data=data, run_at=0, enqueued_at=0, seq=1, first=1, revision=1, run=active)
    handler = Handler(
        queue="q", function=run, is_async=False, serde=JSON, decode_arguments=lambda _: ((), {})
    )
    invocation = Invocation(handler, job, 0)
    invocation.action = with_wake_up(Complete(), id, attributes)
    return invocation


def test_a_request_keeps_the_last_wake_up_of_each_flow() -> None:
    other = {FLOW_ATTRIBUTE: b'"other"'}
    runs = [run("a", FLOW), run("b", other), run("c", {}), run("d", FLOW), run("e", FLOW)]
    failed = run("f", FLOW)
    failed.action = with_wake_up(Fail(error=Error(type="E")), "import/abc/1", FLOW)
    runs.insert(2, failed)
    fold_wake_ups(runs)

    actions = [(one.job.id, one.action) for one in runs]
    woken = [id for id, action in actions if isinstance(action, Complete | Fail) and action.then]
    assert ["b", "f", "e"] == woken
