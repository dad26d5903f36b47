"""The events of the log that each queue keeps (contract 3, Events).

The setting `log_level` of a queue is `off`, `runs` (the ends of attempts) or `all` (also every other change).
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from dibs.model.job import ActiveRun, Error, Job, Successor
from dibs.model.retry import RetryCause

#: The kinds of event that mark the end of an attempt. The log has them at the levels `runs` and `all`.
AttemptKind = Literal["completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released"]
#: The kinds of event for every other change. The log has them only at the level `all`. A chunk of output has
#: the kind `output`, which no log has.
NoteKind = Literal[
    "queued",
    "updated",
    "blocked",
    "promoted",
    "claimed",
    "handed_off",
    "cancel_requested",
    "amended",
    "forgotten",
    "paused",
    "resumed",
    "configured",
]
EventKind = AttemptKind | NoteKind | Literal["output"]

#: The kind of event for a run that returns to the queue, by the cause of the retry.
KIND_OF_CAUSE: Final[dict[RetryCause, AttemptKind]] = {
    "error": "retried",
    "timeout": "timed_out",
    "stall": "stalled",
}


class LogEvent(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One event. It has enough fields to rebuild the history of a run. Times are ms since the epoch, UTC."""

    kind: EventKind
    #: The id of the job; empty for events of the queue itself (paused, resumed, configured).
    id: str
    #: The time of the event.
    at: int
    #: The number of the claim, from 1; 0 if the job was not claimed.
    attempt: int = 0
    #: The fence of the run, a number that identifies its claim; 0 if the job was not claimed.
    fence: int = 0
    #: The time of the first enqueue of the job.
    enqueued_at: int = 0
    #: The time from which the job could be claimed.
    run_at: int = 0
    #: The time of the claim; None if the job was not claimed.
    claimed_at: int | None = None
    #: The time at which the attempt ended; None unless `kind` is an AttemptKind.
    finished_at: int | None = None
    #: The holder of the lease; empty if the job was not claimed.
    holder: str = ""
    #: The revision of the oldest enqueue that was merged into the job; 0 for events of the queue itself.
    first: int = 0
    #: The revision of the newest enqueue that was merged into the job; 0 for events of the queue itself.
    revision: int = 0
    #: The number of enqueues that were merged into the job.
    enqueues: int = 0
    #: The error of an attempt that failed, was retried, stalled or timed out, or the reason of a
    #: cancellation; None if there is no error.
    error: Error | None = None
    #: The encoded result of a completed attempt, if the setting `log_results` allows its size; the chunk of
    #: an event `output`; else None.
    result: bytes | None = None


def attempt_event(
    kind: AttemptKind, job: Job, at: int, error: Error | None = None, result: bytes | None = None
) -> LogEvent:
    """Return the event for the end of an attempt at time `at`. `job` is the job as it was before that end."""
    run = job.run
    return LogEvent(
        kind=kind,
        id=job.id,
        at=at,
        attempt=job.attempts if run else 0,
        fence=run.fence if run else 0,
        enqueued_at=job.enqueued_at,
        run_at=job.run_at,
        claimed_at=run.claimed_at if run else None,
        finished_at=at,
        holder=run.holder if run else "",
        first=job.first,
        revision=job.revision,
        enqueues=job.enqueues,
        error=error,
        result=result,
    )


def output_event(job: Job, run: ActiveRun, at: int) -> LogEvent:
    """Return the event of each chunk of a report, without the chunk. `job` is the job at the report."""
    return LogEvent(
        kind="output",
        id=job.id,
        at=at,
        attempt=job.attempts,
        fence=run.fence,
        holder=run.holder,
        first=job.first,
        revision=job.revision,
    )


def logged_result(result: bytes | None, log_results: int) -> bytes | None:
    """Return the result as the log keeps it: None if it is longer than `log_results` bytes."""
    return result if result is not None and log_results > 0 and len(result) <= log_results else None


def dropped_event(id: str, successor: Successor, at: int) -> LogEvent:
    """Return the event for a successor (the enqueues during a run) that a cancel removed; `attempt` is 0."""
    return LogEvent(
        kind="cancelled",
        id=id,
        at=at,
        enqueued_at=successor.enqueued_at,
        run_at=successor.run_at,
        finished_at=at,
        first=successor.first,
        revision=successor.revision,
        enqueues=successor.enqueues,
    )


def note_event(kind: NoteKind, id: str, at: int, about: Job | Successor | None = None) -> LogEvent:
    """Return an event that only the level `all` logs.

    `about` is the changed job or successor. It is None for an event of the queue itself, such as `paused`,
    for `forgotten`, and for `amended` if the id has only an outcome.
    """
    if about is None:
        return LogEvent(kind=kind, id=id, at=at)
    run = about.run if isinstance(about, Job) else None
    return LogEvent(
        kind=kind,
        id=id,
        at=at,
        attempt=about.attempts if isinstance(about, Job) and run else 0,
        fence=run.fence if run else 0,
        enqueued_at=about.enqueued_at,
        run_at=about.run_at,
        claimed_at=run.claimed_at if run else None,
        holder=run.holder if run else "",
        first=about.first,
        revision=about.revision,
        enqueues=about.enqueues,
    )
