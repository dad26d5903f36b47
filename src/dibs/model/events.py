"""What the log of a queue tells: one value for each thing that happened to a job (contract 3, Events)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from dibs.model.job import Error, Job, Outcome, Successor
from dibs.model.retry import RetryCause

#: At level `runs`: the end of an attempt.
AttemptKind = Literal["completed", "failed", "cancelled", "retried", "stalled", "timed_out", "released"]
#: At level `all`, also:
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
EventKind = AttemptKind | NoteKind

KIND_OF_CAUSE: Final[dict[RetryCause, AttemptKind]] = {
    "error": "retried",
    "timeout": "timed_out",
    "stall": "stalled",
}


class LogEvent(Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """One thing that happened, with enough to rebuild a run. Times are ms; `at` is when it happened."""

    kind: EventKind
    #: Empty for events of the queue itself (paused, resumed, configured).
    id: str
    at: int
    #: Which claim of the job this was; 0 when it was not claimed.
    attempt: int = 0
    fence: int = 0
    enqueued_at: int = 0
    run_at: int = 0
    claimed_at: int | None = None
    finished_at: int | None = None
    holder: str = ""
    first: int = 0
    revision: int = 0
    enqueues: int = 0
    error: Error | None = None


def attempt_event(kind: AttemptKind, job: Job, at: int, error: Error | None = None) -> LogEvent:
    """Tell how an attempt of `job`, as it was before it ended, went."""
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
    )


def dropped_event(id: str, successor: Successor, at: int) -> LogEvent:
    """Tell that a cancel dropped a blocked successor."""
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


def note_event(kind: NoteKind, id: str, at: int, about: Job | Successor | Outcome | None = None) -> LogEvent:
    """Tell one of the things that only level `all` keeps."""
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
