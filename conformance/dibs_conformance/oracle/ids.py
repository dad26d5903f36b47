"""One id as the contract tells it: a current, the list of what was enqueued beside it, an outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dibs.model.job import Error, Job, JobData, Outcome, OutcomeRetention, RevisionRange
from dibs.model.requests import Update

MOST_DROPPED = 8


@dataclass(frozen=True)
class OneOf:
    """Any of these answers keeps the contract."""

    answers: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class AcceptedEnqueue:
    """One accepted enqueue, its delay resolved."""

    data: JobData
    run_at: int
    at: int
    how: Update
    seq: int
    revision: int


@dataclass(frozen=True, kw_only=True)
class Amendment:
    """One amend that reached the successor."""

    attributes: Mapping[str, bytes] | UnsetType = UNSET
    retention: OutcomeRetention | UnsetType = UNSET


Entry = AcceptedEnqueue | Amendment


def new_job(id: str, entries: Sequence[Entry]) -> Job:
    """Apply the list, in order, to an empty id: the first counts whole, whatever it says."""
    first, *rest = entries
    assert isinstance(first, AcceptedEnqueue)  # noqa: S101 - nothing is patched before it exists
    job = Job(
        id=id,
        data=first.data,
        run_at=first.run_at,
        enqueued_at=first.at,
        seq=first.seq,
        first=first.revision,
        revision=first.revision,
    )
    return replay(job, rest)


def replay(job: Job, entries: Sequence[Entry]) -> Job:
    """Apply the list, in order, to a waiting job."""
    for entry in entries:
        job = apply_amendment(job, entry) if isinstance(entry, Amendment) else apply_enqueue(job, entry)
    return job


def apply_enqueue(job: Job, enqueued: AcceptedEnqueue) -> Job:
    job = replace(job, revision=enqueued.revision, enqueues=job.enqueues + 1)
    job = replace(job, run_at=merge_run_at(job.run_at, enqueued))
    if enqueued.how.data:
        job = replace(job, data=enqueued.data)
    if resets(enqueued.how):
        job = replace(job, attempts=0, retries=0, stalls=0, timeouts=0, error=error_after_reset(job))
    return job


def resets(how: Update) -> bool:
    """Read the contract's words anew: `Update.resets` may be what is wrong."""
    return how.data if how.reset_counts is None else how.reset_counts


def error_after_reset(job: Job) -> Error | None:
    """Whether a reset also lets go of the last error is left open: both are right."""
    return OneOf((job.error, None)) if isinstance(job.error, Error) else job.error  # type: ignore[return-value]


def merge_run_at(old: int, enqueued: AcceptedEnqueue) -> int:
    match enqueued.how.run_at:
        case "always":
            return enqueued.run_at
        case "never":
            return old
        case "later":
            return max(old, enqueued.run_at)
        case "earlier":
            return min(old, enqueued.run_at)


def apply_amendment(job: Job, patch: Amendment) -> Job:
    data = job.data
    if patch.attributes is not UNSET:
        data = replace(data, attributes={**data.attributes, **patch.attributes})
    if patch.retention is not UNSET:
        data = replace(data, retention=patch.retention)
    return replace(job, data=data)


@dataclass
class IdRecord:
    """All that is known of one id."""

    current: Job | None = None
    #: What was enqueued, and patched, beside the active current, oldest first.
    during_run: list[Entry] = field(default_factory=list)
    outcome: Outcome | None = None
    #: The dropped ranges that must still be told, oldest first.
    dropped: list[RevisionRange] = field(default_factory=list)
    #: Every range that was ever dropped: these may be told.
    ever_dropped: list[RevisionRange] = field(default_factory=list)

    @property
    def state(self) -> str:
        """The state in the words of Enqueued.found."""
        if self.current is None:
            return "nothing"
        if self.current.run is None:
            return "waiting"
        return "active+blocked" if self.during_run else "active"

    def live_outcome(self, now: int) -> Outcome | None:
        """The outcome, unless it has expired."""
        outcome = self.outcome
        if outcome is None or (outcome.expires_at is not None and now >= outcome.expires_at):
            return None
        return outcome

    def successor(self) -> Job | None:
        """The job that waits once the run ends."""
        return new_job(self.current.id, self.during_run) if self.current and self.during_run else None

    def drop_successor(self, now: int) -> None:
        """Forget what was enqueued beside the run, and remember its range as dropped."""
        blocked = self.successor()
        assert blocked is not None  # noqa: S101 - the caller saw it
        assert self.current is not None  # noqa: S101 - a successor stands beside a current
        self.during_run = []
        new = (blocked.first, blocked.revision)
        if self.dropped and self.current.revision < self.dropped[-1][0]:
            new = (self.dropped.pop()[0], new[1])
        self.dropped.append(new)
        self.ever_dropped.append(new)
        self.forget_old_drops(now)

    def forget_old_drops(self, now: int) -> None:
        """Let go of the dropped ranges nobody is promised any more."""
        around = [live for live in (self.current, self.live_outcome(now)) if live is not None]
        if not around:
            self.dropped = []
        latest = self.dropped[-1:]
        kept = [r for r in self.dropped[:-1] if any(inside(r, live) for live in around)]
        self.dropped = (kept + latest)[-MOST_DROPPED:]


def inside(dropped: RevisionRange, live: Job | Outcome) -> bool:
    return live.first <= dropped[0] and dropped[1] <= live.revision
