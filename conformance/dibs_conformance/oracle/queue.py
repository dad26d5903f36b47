"""The oracle and its queues: settings, ids, leases, request keys and the log, in lists and dictionaries.

A world is an oracle after some calls, with the numbers of the storage that it knows. The oracle draws its own
fences and revisions, so a world maps them to those of the storage. The search for an order copies the world
before it tries another call.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from fractions import Fraction
from math import ceil, floor
from typing import get_args

from attrs import define, field, frozen
from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.events import LogEvent
from dibs.model.job import DEFAULT_RETENTION, FAIL_SUFFIX, ActiveRun, EndKind, Error, Job, OutcomeRetention
from dibs.model.requests import Settings, StartRate
from dibs.model.results import EnqueueResult, State
from dibs_conformance.oracle.ids import IdRecord, OracleChunk
from dibs_conformance.oracle.numbering import ConcurrentNumberMap, NumberMap, NumberSource

#: A start, or the cost of a run: the time in ms, and the cost in thousandths of a start.
Charge = tuple[int, int | None]
#: A clock is at most this many µs ahead of now.
FURTHEST = 366 * 24 * 3600 * 10**6


@define
class Starts:
    """The starts in one queue since its rates were set, and the costs of its runs, in order.

    Each is a time in ms since the epoch, and a cost in thousandths of a start; None for a start.
    """

    #: The starts since `rate` was set.
    of_queue: list[Charge] = field(factory=list)
    #: By key: the starts since `key_rate` was set.
    by_key: dict[str, list[Charge]] = field(factory=dict)

    def add(self, key: str | None, now: int, cost: int | None = None) -> None:
        self.of_queue.append((now, cost))
        if key is not None:
            self.by_key.setdefault(key, []).append((now, cost))

    def begin_changed_rates(self, before: Settings, after: Settings) -> None:
        """Forget the starts under each rate that a `configure` changed."""
        if after.rate != before.rate:
            self.of_queue = []
        if after.key_rate != before.key_rate:
            self.by_key = {}

    def copy(self) -> Starts:
        return Starts(list(self.of_queue), {key: list(times) for key, times in self.by_key.items()})


def interval(rate: StartRate) -> int:
    """Return the time between two starts in µs, rounded up."""
    whole, rest = divmod(rate.per * 1000, rate.starts)
    return whole + (rest > 0)


def first_start(rate: StartRate | None, charges: Sequence[Charge]) -> int:
    """Return the first ms at which a rate allows a start after the `charges`; 0 without a rate."""
    if rate is None:
        return 0
    clock = 0
    for at, cost in charges:
        if cost is None:
            clock = max(clock, at * 1000) + interval(rate)
        elif cost > 1000:
            more = ceil(Fraction((cost - 1000) * interval(rate), 1000))
            clock = min(max(clock, at * 1000) + more, at * 1000 + FURTHEST)
        elif clock > at * 1000:
            clock -= floor(Fraction((1000 - cost) * interval(rate), 1000))
    allowed = max(0, clock - (rate.burst - 1) * interval(rate))
    whole, rest = divmod(allowed, 1000)
    return whole + (rest > 0)


@define
class KeyTurn:
    """The turn of a key in a queue with `fair`; None stands for the jobs without a key."""

    key: str | None
    #: The starts since the turn began.
    starts: int = 0
    #: The number of the `drop` that let the key join the ring beside others. It may do so in any order.
    drop: int = 0


@define
class OracleLease:
    """A lease in one queue: its holder, and its expiry in ms since the epoch."""

    holder: str
    expires_at: int
    dropped: bool = False


@frozen
class KeyedResult:
    """The result of the first enqueue with a request_key, which repeats get until `expires_at`."""

    answer: EnqueueResult
    #: The id of the first enqueue; "" if it was answered `absent`.
    id: str
    expires_at: int


@frozen
class LoggedEvent:
    """An event, and the number of the call that caused it. Events of one call may have any order."""

    call: int
    event: LogEvent


@define
class OracleQueue:
    """The state of one queue in the oracle. `keys` holds results by request_key."""

    name: str
    numbers: NumberSource
    settings: Settings = field(factory=Settings)
    ids: dict[str, IdRecord] = field(factory=dict)
    leases: dict[str, OracleLease] = field(factory=dict)
    keys: dict[str, KeyedResult] = field(factory=dict)
    log: list[LoggedEvent] = field(factory=list)
    starts: Starts = field(factory=Starts)
    #: The turns of the keys with waiting jobs, the next one first, if the queue is `fair`.
    ring: list[KeyTurn] = field(factory=list)
    #: True since `log_bytes` was below its default, which no history reaches: events may have been removed.
    size_limited: bool = False

    def record(self, id: str) -> IdRecord:
        """Return the record of an id. The caller changes no other id before it calls `record` again."""
        self.update_ring()
        return self.ids.setdefault(id, IdRecord())

    def update_ring(self) -> None:
        """Note in the ring which keys have waiting jobs. At most one id has changed since the last call."""
        if self.settings.fair:
            waiting = {job.data.key for job in self.jobs() if job.run is None}
            self.ring = [turn for turn in self.ring if turn.key in waiting]
            self.ring += [KeyTurn(key) for key in waiting - {turn.key for turn in self.ring}]

    def share(self, key: str | None) -> int:
        return 1 if key is None else self.settings.shares.get(key, 1)

    def count_start(self, key: str | None) -> None:
        """Count the start of a run, whose job waits no longer, in the turn of its key."""
        for turn in [turn for turn in self.ring if turn.key == key]:
            turn.starts += 1
            if turn.starts >= self.share(key):
                self.ring.remove(turn)
                self.ring.append(KeyTurn(key))
        self.update_ring()

    def place(self, key: str | None) -> tuple[int, bool]:
        """Return the place of a key in the ring, and whether other keys may share it; 0 without turns."""
        for place, turn in enumerate(self.ring):
            if turn.key == key:
                shares = [other.drop == turn.drop for other in self.ring] if turn.drop else []
                return (shares.index(True), True) if shares.count(True) > 1 else (place, False)
        return 0, False

    def rename(self, id: str, actual: str) -> None:
        """Replace the placeholder id of a fail job by the id that the storage generated."""
        record = self.ids.pop(id)
        assert record.current is not None  # noqa: S101 - it was just enqueued
        record.current = replace(record.current, id=actual)
        self.ids[actual] = record
        renamed = [(n, replace(n.event, id=actual)) for n in self.log if n.event.id == id]
        self.log = [n for n in self.log if n.event.id != id] + [
            LoggedEvent(n.call, event) for n, event in renamed
        ]

    def lease(self, lease: str, now: int) -> OracleLease | None:
        """Return a live lease, or None if it was never granted, was dropped or has expired."""
        found = self.leases.get(lease)
        if found is None or found.dropped or now >= found.expires_at:
            return None
        return found

    def jobs(self) -> Iterator[Job]:
        """Return the current jobs, waiting and active."""
        return (record.current for record in self.ids.values() if record.current is not None)

    def held(self, lease: str | None = None) -> list[tuple[Job, ActiveRun]]:
        """Return the active jobs under this lease, or under any lease."""
        runs = [(job, job.run) for job in self.jobs() if job.run is not None]
        return [(j, r) for j, r in runs if r.lease is not None and lease in (None, r.lease)]

    def next_times(self, now: int) -> list[int]:
        """Return the times after now at which a lease, key, job or outcome expires or falls due, in order."""
        ends = [lease.expires_at for lease in self.leases.values()]
        ends += [key.expires_at for key in self.keys.values()]
        ends += [job.run_at for job in self.jobs()]
        kept = (record.outcome for record in self.ids.values())
        ends += [o.expires_at for o in kept if o is not None and o.expires_at is not None]
        return sorted({end for end in ends if end > now})

    def expired_entries(self, now: int) -> int:
        """Return the most entries that prune may remove: expired outcomes and request keys, events older than
        `log_age`, and every clock.
        """
        outcomes = sum(one.outcome is not None and not one.live_outcome(now) for one in self.ids.values())
        keys = sum(now >= key.expires_at for key in self.keys.values())
        clocks = 1 + len(self.starts.by_key)
        return outcomes + keys + clocks + sum(n.event.at + self.settings.log_age <= now for n in self.log)

    def prune(self, now: int) -> None:
        """Remove all expired outcomes."""
        for record in self.ids.values():
            record.outcome = record.live_outcome(now)

    def expired(self, run: ActiveRun, now: int) -> bool:
        return run.lease is not None and now >= self.leases[run.lease].expires_at

    def retention(self, kind: EndKind, job: Job, given: OutcomeRetention | None) -> tuple[int | None, bool]:
        """Return how long an outcome is kept in ms, and whether with its payload.

        The retention of the end comes first, then that of the job, then that of the queue.
        """
        options = [given, job.data.retention, self.settings.retention, DEFAULT_RETENTION]
        if self.name.endswith(FAIL_SUFFIX) and kind == "failed":
            options.insert(2, OutcomeRetention(failed=None))
        retentions = [level for level in options if level is not None]
        age = next(a for level in retentions if (a := getattr(level, kind)) is not UNSET)
        keeps = next(k for level in retentions if (k := level.keep_payload) is not UNSET)
        return age, kind in keeps

    def change_settings(self, after: Settings, now: int) -> None:
        """Store the settings, and log which ones changed, if the old or the new log level is `all`."""
        self.update_ring()
        before, self.settings = self.settings, after
        self.change_turns(before)
        self.starts.begin_changed_rates(before, after)
        self.size_limited = self.size_limited or after.log_bytes < Settings().log_bytes
        if "all" not in (before.log_level, after.log_level):
            return
        if after.paused != before.paused:
            self._append(LogEvent(kind="paused" if after.paused else "resumed", id="", at=now))
        if after != replace(before, paused=after.paused):
            self._append(LogEvent(kind="configured", id="", at=now))

    def change_turns(self, before: Settings) -> None:
        """Begin the turns of the keys whose share has changed, or all if `fair` has changed."""
        if before.fair == self.settings.fair:
            for turn in self.ring:
                if turn.key is not None and before.shares.get(turn.key, 1) != self.share(turn.key):
                    turn.starts = 0
            return
        waiting = [job for job in self.jobs() if job.run is None]
        in_order = sorted(waiting, key=lambda job: (-job.data.priority, job.run_at, job.seq, job.id))
        keys = dict.fromkeys(job.data.key for job in in_order)
        self.ring = [KeyTurn(key) for key in keys] if self.settings.fair else []

    # -- the log -------------------------------------------------------------------------------------

    def _append(self, event: LogEvent) -> None:
        self.log.append(LoggedEvent(self.numbers.call, event))

    def log_event(self, kind: str, id: str, now: int, job: Job | None = None) -> None:
        """Log an event that only level `all` has, with the fields of the job, if it is about a job."""
        if self.settings.log_level != "all":
            return
        event = LogEvent(kind=kind, id=id, at=now)  # type: ignore[arg-type]
        if job is not None:
            run = job.run
            event = replace(
                event,
                attempt=job.attempts if run else 0,
                fence=run.fence if run else 0,
                enqueued_at=job.enqueued_at,
                run_at=job.run_at,
                claimed_at=run.claimed_at if run else None,
                holder=run.holder if run else "",
                first=job.first,
                revision=job.revision,
                enqueues=job.enqueues,
            )
        self._append(event)

    def log_attempt_end(
        self, kind: str, job: Job, now: int, error: Error | None = None, result: bytes | None = None
    ) -> None:
        """Log the end of an attempt: of a run, of a waiting job, or of a dropped successor."""
        if self.settings.log_level == "off":
            return
        most = self.settings.log_results
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
            result=result if result is not None and most > 0 and len(result) <= most else None,
        )
        self._append(event)


class Oracle:
    """A simple storage in memory, the model for a real storage. Call `begin_call` before each verb.

    The steps of the verbs are in their modules (dibs_conformance/verbs).
    """

    def __init__(self, numbers: NumberSource | None = None) -> None:
        self.numbers = numbers or NumberSource()
        self.queues: dict[str, OracleQueue] = {}
        self.now = 0

    def begin_call(self, now: int) -> int:
        """Start a call and return its time: `now`, or the latest earlier time if that is later."""
        self.numbers.next_call()
        self.now = max(self.now, now)
        return self.now

    def queue(self, name: str) -> OracleQueue:
        if name not in self.queues:
            self.queues[name] = OracleQueue(name, self.numbers)
        return self.queues[name]

    def get(self, queue: str, id: str) -> IdRecord:
        """Return the record of an id. Its `dropped` has only the ranges that a read must report now."""
        record = self.queue(queue).record(id)
        record.forget_old_drops(self.now)
        return record

    def list(self, queue: str, state: State) -> set[str]:
        ids = self.queue(queue).ids
        return {id for id, record in ids.items() if state in states_of_record(record, self.now)}


STATES: tuple[State, ...] = get_args(State)


def states_of_record(record: IdRecord, now: int) -> Iterator[State]:
    """Yield every state in which an id counts: a scheduled job counts as waiting, too."""
    job, outcome = record.current, record.live_outcome(now)
    if job is not None and job.run is None:
        yield "waiting"
        if job.run_at > now:
            yield "scheduled"
    if job is not None and job.run is not None:
        yield "active"
        if job.run.lease is None:
            yield "handed_off"
        if record.during_run:
            yield "blocked"
    if outcome is not None:
        yield outcome.kind


class OracleWorld:
    """The oracle after some calls, and the numbers of the storage that it knows."""

    def __init__(self, numbering: NumberMap) -> None:
        self.oracle = Oracle()
        self.numbering = numbering
        #: By queue and request_key: the id whose numbers a repeated enqueue returns.
        self.key_owners: dict[tuple[str, str], str] = {}


class PossibleWorld(OracleWorld):
    """A world of overlapping calls. The search copies it before it tries another call."""

    numbering: ConcurrentNumberMap

    def __init__(self) -> None:
        super().__init__(ConcurrentNumberMap())

    def copy(self) -> PossibleWorld:
        other = PossibleWorld.__new__(PossibleWorld)
        other.oracle = copy_oracle(self.oracle)
        other.numbering = self.numbering.copy()
        other.key_owners = dict(self.key_owners)
        return other


def copy_oracle(oracle: Oracle) -> Oracle:
    """Return an independent copy of an oracle. Immutable values are shared."""
    numbers: NumberSource = copy(oracle.numbers)
    other = Oracle(numbers)
    other.now = oracle.now
    other.queues = {name: copy_queue(queue, numbers) for name, queue in oracle.queues.items()}
    return other


def copy_queue(queue: OracleQueue, numbers: NumberSource) -> OracleQueue:
    return OracleQueue(
        name=queue.name,
        numbers=numbers,
        settings=queue.settings,
        ids={id: copy_record(record) for id, record in queue.ids.items()},
        leases={name: copy(lease) for name, lease in queue.leases.items()},
        keys=dict(queue.keys),
        log=list(queue.log),
        starts=queue.starts.copy(),
        ring=[copy(turn) for turn in queue.ring],
        size_limited=queue.size_limited,
    )


def copy_record(record: IdRecord) -> IdRecord:
    return IdRecord(
        current=record.current,
        during_run=list(record.during_run),
        outcome=record.outcome,
        dropped=list(record.dropped),
        ever_dropped=list(record.ever_dropped),
        output=copy_chunks(record.output),
        outcome_output=copy_chunks(record.outcome_output),
    )


def copy_chunks(chunks: Sequence[OracleChunk]) -> list[OracleChunk]:
    return [copy(chunk) for chunk in chunks]
