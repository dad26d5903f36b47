"""Events: each has all that a reader needs to rebuild the run."""

from __future__ import annotations

from dibs.model import events
from dibs.model.job import ActiveRun, Job, JobData

RUN = ActiveRun(fence=77, lease="l", holder="ann", claimed_at=30)
JOB = Job(
    id="a",
    data=JobData(),
    run_at=20,
    enqueued_at=10,
    seq=5,
    first=5,
    revision=6,
    enqueues=2,
    attempts=3,
    run=RUN,
)
WAITING = Job(id="a", data=JobData(), run_at=20, enqueued_at=10, seq=5, first=5, revision=6, attempts=3)


def test_an_event_has_the_result_only_within_the_size_of_the_setting() -> None:
    """A longer result is left out whole. At 0 even an empty result is left out."""
    assert b"12" == events.logged_result(b"12", 2)
    assert b"" == events.logged_result(b"", 1)
    assert [None] * 4 == [
        events.logged_result(b"123", 2),
        events.logged_result(b"1", 0),
        events.logged_result(b"", 0),
        events.logged_result(None, 9),
    ]


def test_the_end_of_a_waiting_job_is_of_attempt_0() -> None:
    """The job was claimed before, but it was cancelled while it waited."""
    event = events.attempt_event("cancelled", WAITING, 60)

    assert (0, 0, None, "", 60) == (
        event.attempt,
        event.fence,
        event.claimed_at,
        event.holder,
        event.finished_at,
    )
