"""The outcome of a job that ends. That of a plain job is made in one step, and of any other job in two."""

from __future__ import annotations

from typing import Any

import pytest

from dibs.model.job import ActiveRun, Error, Job, JobData, Origin, Outcome, OutcomeRetention
from dibs.model.requests import Cancelled, Complete, End, Fail
from dibs.model.transitions import make_outcome

NOW = 5_000
ERROR = Error(type="ValueError", message="no")
ORIGIN = Origin(
    queue="q",
    id="a",
    revision=1,
    fence=2,
    attempts=1,
    retries=0,
    stalls=0,
    timeouts=0,
    run_at=0,
    enqueued_at=3,
    error=ERROR,
)
KEPT = OutcomeRetention(completed=1000, failed=1000, cancelled=1000)
WITH_DATA = OutcomeRetention(completed=1000, failed=1000, cancelled=1000, keep_payload=("completed",))
PLAIN: dict[str, Any] = {
    "id": "a",
    "run_at": 7,
    "enqueued_at": 6,
    "seq": 1,
    "first": 2,
    "revision": 4,
    "enqueues": 3,
}
RUN = ActiveRun(fence=9, lease="l", holder="h", claimed_at=8)


def expected(job: Job, action: End, *, keeps_data: bool) -> Outcome:
    """Return an outcome with each field set from the job or the action."""
    kinds: dict[type, Any] = {Complete: "completed", Fail: "failed", Cancelled: "cancelled"}
    copied = (
        "first",
        "revision",
        "enqueues",
        "enqueued_at",
        "run_at",
        "attempts",
        "retries",
        "stalls",
        "timeouts",
    )
    fields: dict[str, Any] = {name: getattr(job, name) for name in (*copied, "origin")}
    run: dict[str, Any] = (
        {} if job.run is None else {"claimed_at": job.run.claimed_at, "holder": job.run.holder}
    )
    return Outcome(
        **fields,
        **run,
        kind=kinds[type(action)],
        fence=0 if job.run is None else job.run.fence,
        ended_at=NOW,
        expires_at=NOW + 1000,
        result=getattr(action, "result", None),
        error=getattr(action, "error", None),
        data=job.data if keeps_data else None,
        attributes={} if keeps_data else job.data.attributes,
    )


@pytest.mark.parametrize("action", [Complete(result=b"1"), Fail(error=ERROR), Cancelled()])
@pytest.mark.parametrize("run", [None, RUN])
@pytest.mark.parametrize("attributes", [{}, {"a": b"1"}])
@pytest.mark.parametrize(
    "other",
    [{}, {"attempts": 1}, {"retries": 1}, {"stalls": 2}, {"timeouts": 3}, {"origin": ORIGIN}],
    ids=lambda fields: next(iter(fields), "plain"),
)
def test_an_outcome_has_all_fields_of_its_job(
    action: End, run: ActiveRun | None, attributes: dict[str, bytes], other: dict[str, Any]
) -> None:
    for at_job in (None, OutcomeRetention()):
        data = JobData(payload=b"p", attributes=attributes, retention=at_job)
        job = Job(**PLAIN, **other, data=data, run=run)
        for queue in (KEPT, WITH_DATA):
            kinds = ("completed",) if queue is WITH_DATA else ("failed",)
            found = make_outcome(job, action, NOW, queue)

            assert expected(job, action, keeps_data=found.kind in kinds) == found


@pytest.mark.parametrize("action", [Complete(result=b"1"), Fail(error=ERROR), Cancelled()])
def test_an_outcome_that_expires_at_once_has_no_details(action: End) -> None:
    job = Job(**PLAIN, data=JobData(payload=b"p"), run=RUN, attempts=1)
    gone = OutcomeRetention(completed=0, failed=0, cancelled=0)
    found = make_outcome(job, action, NOW, gone)

    assert NOW == found.expires_at
    assert (None, None, 0, "") == (found.result, found.error, found.attempts, found.holder)
