"""The oracle's state of one id: the current job, the enqueues and amendments during its run, the outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import define, field, frozen
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.job import Error, Job, JobData, Outcome, OutcomeRetention, RevisionRange
from dibs.model.requests import Update

MAX_DROPPED_RANGES = 8


@frozen
class OneOf:
    """An expected result where the contract allows several. The storage must return one of `answers`."""

    answers: tuple[Any, ...]


@frozen(kw_only=True)
class AcceptedEnqueue:
    """One accepted enqueue, with the numbers drawn for it. `at` is the time of the call."""

    data: JobData
    run_at: int
    at: int
    on_conflict: Update
    seq: int
    revision: int


@frozen(kw_only=True)
class Amendment:
    """The part of an amend that also changes the successor. An UNSET field is not changed."""

    attributes: Mapping[str, bytes] | UnsetType = UNSET
    retention: OutcomeRetention | UnsetType = UNSET


Entry = AcceptedEnqueue | Amendment


def new_job(id: str, entries: Sequence[Entry]) -> Job | None:
    """Build the job that a list of entries makes of an empty id, or None if no entry creates a job.

    The first enqueue that creates sets all fields but the range, whatever its conflict rule. The entries
    before it do nothing, but their revisions belong to the range.
    """
    enqueued = accepted_enqueues(entries)
    first = next((one for one in enqueued if one.on_conflict.create), None)
    if first is None:
        return None
    job = Job(
        id=id,
        data=first.data,
        run_at=first.run_at,
        enqueued_at=first.at,
        seq=first.seq,
        first=enqueued[0].revision,
        revision=first.revision,
        enqueues=1 + enqueued.index(first),
    )
    return replay(job, entries[entries.index(first) + 1 :])


def accepted_enqueues(entries: Sequence[Entry]) -> list[AcceptedEnqueue]:
    return [entry for entry in entries if isinstance(entry, AcceptedEnqueue)]


def update_only_job(id: str, entries: Sequence[Entry]) -> Job:
    """Return the successor of a list that creates nothing, as a job without data, with run_at and seq 0."""
    enqueued = accepted_enqueues(entries)
    return Job(
        id=id,
        data=JobData(),
        run_at=0,
        enqueued_at=enqueued[0].at,
        seq=0,
        first=enqueued[0].revision,
        revision=enqueued[-1].revision,
        enqueues=len(enqueued),
    )


def replay(job: Job, entries: Sequence[Entry]) -> Job:
    """Apply a list of entries to a waiting job, in order."""
    for entry in entries:
        job = apply_amendment(job, entry) if isinstance(entry, Amendment) else apply_enqueue(job, entry)
    return job


def apply_enqueue(job: Job, enqueued: AcceptedEnqueue) -> Job:
    job = replace(job, revision=enqueued.revision, enqueues=job.enqueues + 1)
    job = replace(job, run_at=merge_run_at(job.run_at, enqueued))
    if replaces_data(enqueued.on_conflict):
        job = replace(job, data=enqueued.data)
    if not enqueued.on_conflict.create:
        job = with_attributes(job, enqueued.data.attributes)
    if resets_counts(enqueued.on_conflict):
        job = replace(job, attempts=0, retries=0, stalls=0, timeouts=0, error=error_after_reset(job))
    return job


def with_attributes(job: Job, attributes: Mapping[str, bytes]) -> Job:
    return apply_amendment(job, Amendment(attributes=attributes)) if attributes else job


def replaces_data(on_conflict: Update) -> bool:
    """Return whether an update replaces the data. `Update.replaces` is not used, because it is under test."""
    return on_conflict.create if on_conflict.data is None else on_conflict.data


def resets_counts(on_conflict: Update) -> bool:
    """Return whether an update resets the counts. `Update.resets` is not used, because it is under test."""
    replaces = replaces_data(on_conflict)
    return replaces if on_conflict.reset_counts is None else on_conflict.reset_counts


def error_after_reset(job: Job) -> Error | None:
    """Return the expected error after a reset of the counts: the old error or None, both are correct.

    The contract leaves open whether a reset keeps the error.
    """
    return OneOf((job.error, None)) if isinstance(job.error, Error) else job.error  # type: ignore[return-value]


def merge_run_at(old: int, enqueued: AcceptedEnqueue) -> int:
    match enqueued.on_conflict.run_at:
        case "always":
            return enqueued.run_at
        case "never" | "wake":  # a wake moves only a parked job, see `changes.move_parked`
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


@define
class OracleChunk:
    """A chunk of output. `serial` grows with each chunk of the oracle, and orders them."""

    serial: int
    event: LogEvent
    #: True after a later report has removed it, to keep the bound.
    removed: bool = False


@define
class IdRecord:
    """The state of one id in the oracle."""

    current: Job | None = None
    #: The enqueues and amendments during the active run, oldest first.
    during_run: list[Entry] = field(factory=list)
    outcome: Outcome | None = None
    #: Revisions of successors that a cancel dropped, oldest first. A read must report these ranges.
    dropped: list[RevisionRange] = field(factory=list)
    #: All ranges that a cancel ever dropped. A read may report any of them.
    ever_dropped: list[RevisionRange] = field(factory=list)
    #: The output of the current, oldest first, and that of the outcome. Removed chunks stay here.
    output: list[OracleChunk] = field(factory=list)
    outcome_output: list[OracleChunk] = field(factory=list)

    @property
    def state(self) -> str:
        """Return the state, as one of the values of `EnqueueResult.found`."""
        if self.current is None:
            return "nothing"
        if self.current.run is None:
            return "waiting"
        return "active+blocked" if self.during_run else "active"

    @property
    def was_blocked(self) -> bool:
        """Return whether a request was blocked since the claim of the active run."""
        assert self.current is not None  # noqa: S101 - the caller found an active run
        assert self.current.run is not None  # noqa: S101
        fence = self.current.run.fence
        return bool(accepted_enqueues(self.during_run)) or any(last > fence for _, last in self.ever_dropped)

    def live_outcome(self, now: int) -> Outcome | None:
        """Return the outcome, or None if it has expired."""
        outcome = self.outcome
        if outcome is None or (outcome.expires_at is not None and now >= outcome.expires_at):
            return None
        return outcome

    def visible_output(self, now: int) -> list[OracleChunk]:
        """Return the chunks of the outcome, unless it has expired, and those of the current."""
        return [*(self.outcome_output if self.live_outcome(now) else ()), *self.output]

    def successor(self) -> Job | None:
        """Return the successor, replayed from `during_run`, or None.

        If no enqueue of the list creates a job, the successor is only a range (see `update_only_job`).
        """
        if self.current is None or not self.during_run:
            return None
        id = self.current.id
        return new_job(id, self.during_run) or update_only_job(id, self.during_run)

    def heir(self) -> Job | None:
        """Return the job that waits after the run has ended, or None."""
        return new_job(self.current.id, self.during_run) if self.current and self.during_run else None

    def joined(self) -> Job:
        """Return the current as it ends: with the range of a successor that creates nothing."""
        assert self.current is not None  # noqa: S101 - the caller ends it
        if not self.during_run or self.heir() is not None:
            return self.current
        only = update_only_job(self.current.id, self.during_run)
        return replace(self.current, revision=only.revision, enqueues=self.current.enqueues + only.enqueues)

    def drop_successor(self, now: int) -> None:
        """Remove the entries of the successor, and store its range as dropped."""
        blocked = self.successor()
        assert blocked is not None  # noqa: S101 - the caller checked it
        assert self.current is not None  # noqa: S101 - a successor needs a current job
        self.during_run = []
        new = (blocked.first, blocked.revision)
        if self.dropped and self.current.revision < self.dropped[-1][0]:
            new = (self.dropped.pop()[0], new[1])
        self.dropped.append(new)
        self.ever_dropped.append(new)
        self.forget_old_drops(now)

    def forget_old_drops(self, now: int) -> None:
        """Remove the dropped ranges that a read need not report any more."""
        around = [live for live in (self.current, self.live_outcome(now)) if live is not None]
        if not around:
            self.dropped = []
        latest = self.dropped[-1:]
        kept = [r for r in self.dropped[:-1] if any(is_inside(r, live) for live in around)]
        self.dropped = (kept + latest)[-MAX_DROPPED_RANGES:]


def is_inside(dropped: RevisionRange, live: Job | Outcome) -> bool:
    return live.first <= dropped[0] and dropped[1] <= live.revision
