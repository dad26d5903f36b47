"""One queue as lists and dictionaries: settings, ids, leases, request keys and its log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.job import DEFAULT_RETENTION, FAIL_SUFFIX, ActiveRun, EndKind, Error, Job, OutcomeRetention
from dibs.model.requests import Settings
from dibs.model.results import EnqueueResult
from dibs_conformance.oracle.ids import IdRecord
from dibs_conformance.oracle.numbering import NumberSource


@dataclass
class Lease:
    """A lease as one queue sees it."""

    holder: str
    expires_at: int
    dropped: bool = False


@dataclass(frozen=True)
class KeyedResult:
    """What a request_key got."""

    answer: EnqueueResult
    expires_at: int


@dataclass(frozen=True)
class LoggedEvent:
    """An event and the call that caused it."""

    call: int
    event: LogEvent


@dataclass
class Queue:
    """Everything of one queue."""

    name: str
    numbers: NumberSource
    settings: Settings = field(default_factory=Settings)
    ids: dict[str, IdRecord] = field(default_factory=dict)
    leases: dict[str, Lease] = field(default_factory=dict)
    keys: dict[str, KeyedResult] = field(default_factory=dict)
    log: list[LoggedEvent] = field(default_factory=list)

    def record(self, id: str) -> IdRecord:
        return self.ids.setdefault(id, IdRecord())

    def rename(self, id: str, actual: str) -> None:
        """Give a generated id the name the storage gave it."""
        record = self.ids.pop(id)
        assert record.current is not None  # noqa: S101 - it was just enqueued
        record.current = replace(record.current, id=actual)
        self.ids[actual] = record
        renamed = [(n, replace(n.event, id=actual)) for n in self.log if n.event.id == id]
        self.log = [n for n in self.log if n.event.id != id] + [
            LoggedEvent(n.call, event) for n, event in renamed
        ]

    def lease(self, lease: str, now: int) -> Lease | None:
        """The lease while it lives: granted, neither dropped nor expired."""
        found = self.leases.get(lease)
        if found is None or found.dropped or now >= found.expires_at:
            return None
        return found

    def jobs(self) -> Iterator[Job]:
        """The currents, waiting and active."""
        return (record.current for record in self.ids.values() if record.current is not None)

    def held(self, lease: str | None = None) -> list[tuple[Job, ActiveRun]]:
        """The jobs under this lease, or under any."""
        runs = [(job, job.run) for job in self.jobs() if job.run is not None]
        return [(j, r) for j, r in runs if r.lease is not None and lease in (None, r.lease)]

    def moments(self, now: int) -> list[int]:
        """When something expires or falls due later than now, the next first."""
        ends = [lease.expires_at for lease in self.leases.values()]
        ends += [key.expires_at for key in self.keys.values()]
        ends += [job.run_at for job in self.jobs()]
        kept = (record.outcome for record in self.ids.values())
        ends += [o.expires_at for o in kept if o is not None and o.expires_at is not None]
        return sorted({end for end in ends if end > now})

    def expired(self, run: ActiveRun, now: int) -> bool:
        return run.lease is not None and now >= self.leases[run.lease].expires_at

    def retention(self, kind: EndKind, job: Job, given: OutcomeRetention | None) -> tuple[int | None, bool]:
        """How long this end is kept, and whether with its payload: as the end, the job, or the queue says."""
        levels = [given, job.data.retention, self.settings.retention, DEFAULT_RETENTION]
        if self.name.endswith(FAIL_SUFFIX) and kind == "failed":
            levels.insert(2, OutcomeRetention(failed=None))
        said = [level for level in levels if level is not None]
        age = next(a for level in said if (a := getattr(level, kind)) is not UNSET)
        keeps = next(k for level in said if (k := level.keep_payload) is not UNSET)
        return age, kind in keeps

    # -- the log -------------------------------------------------------------------------------------

    def log_event(self, kind: str, id: str, now: int) -> None:
        """Log what only the level `all` keeps; its details are not compared."""
        if self.settings.log_level == "all":
            self.log.append(LoggedEvent(self.numbers.call, LogEvent(kind=kind, id=id, at=now)))  # type: ignore[arg-type]

    def attempt_ended(self, kind: str, job: Job, now: int, error: Error | None = None) -> None:
        """Log the end of an attempt: of a run, of a waiting job, or of a dropped successor."""
        if self.settings.log_level == "off":
            return
        event = LogEvent(
            kind=kind,  # type: ignore[arg-type]
            id=job.id,
            at=now,
            attempt=job.attempts if job.run else 0,
            fence=job.run.fence if job.run else 0,
            enqueued_at=job.enqueued_at,
            run_at=job.run_at,
            claimed_at=job.run.claimed_at if job.run else None,
            finished_at=now,
            holder=job.run.holder if job.run else "",
            first=job.first,
            revision=job.revision,
            enqueues=job.enqueues,
            error=error,
        )
        self.log.append(LoggedEvent(self.numbers.call, event))
