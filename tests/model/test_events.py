"""Events: each has all that a reader needs to rebuild the run."""

from __future__ import annotations

from dibs.model import events
from dibs.model.job import ActiveRun, Error, Job, JobData, Successor

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
BESIDE = Successor(
    data=JobData(), replaces=True, run_at=50, lo=None, hi=None, resets=True, enqueued_at=40, seq=7, first=7,
    revision=9, enqueues=3,
)  # fmt: skip


def test_the_end_of_an_attempt_tells_the_whole_run() -> None:
    error = Error(type="Oops")
    event = events.attempt_event("retried", JOB, 60, error)

    assert ("retried", "a", 60, 3, 77, "ann", error) == (
        event.kind, event.id, event.at, event.attempt, event.fence, event.holder, event.error
    )  # fmt: skip
    assert (10, 20, 30, 60) == (event.enqueued_at, event.run_at, event.claimed_at, event.finished_at)
    assert (5, 6, 2) == (event.first, event.revision, event.enqueues)


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


def test_a_dropped_successor_is_cancelled_with_attempt_0() -> None:
    event = events.dropped_event("a", BESIDE, 60)

    assert ("cancelled", 0, 7, 9, 3) == (
        event.kind,
        event.attempt,
        event.first,
        event.revision,
        event.enqueues,
    )


def test_a_note_about_a_run_names_its_fence() -> None:
    claimed = events.note_event("claimed", "a", 60, JOB)
    queued = events.note_event("queued", "a", 60, WAITING)

    assert (3, 77) == (claimed.attempt, claimed.fence)
    assert (0, 0) == (queued.attempt, queued.fence)


def test_a_note_about_a_queue_names_no_id() -> None:
    assert events.LogEvent(kind="paused", id="", at=60) == events.note_event("paused", "", 60)


def test_every_cause_has_its_word() -> None:
    assert {"error": "retried", "timeout": "timed_out", "stall": "stalled"} == events.KIND_OF_CAUSE
