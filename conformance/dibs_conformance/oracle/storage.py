"""The oracle with the verbs of the storage protocol, synchronous and with `now` as an argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import get_args

from msgspec import UNSET, convert
from msgspec.structs import asdict, replace

from dibs.model.requests import End, EnqueueRequest, JobPatch, Release, Settings, SettingsPatch, Settlement
from dibs.model.results import (
    AmendStatus,
    CancelStatus,
    ClaimResult,
    Counts,
    EnqueueResult,
    FinishStatus,
    ReapedJob,
    RenewResult,
    ReportStatus,
    RetryFailedStatus,
    SettleResult,
    State,
)
from dibs_conformance.oracle import by_id, ending, enqueueing, holding
from dibs_conformance.oracle.ids import IdRecord, OneOf
from dibs_conformance.oracle.numbering import NumberSource
from dibs_conformance.oracle.queue import OracleQueue


class Oracle:
    """A simple storage in memory, the model for a real storage. Call `begin_call` before each verb."""

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

    # -- enqueue, claim, settle ----------------------------------------------------------------------

    def enqueue(self, queue: str, requests: Sequence[EnqueueRequest], now: int) -> list[EnqueueResult]:
        return [enqueueing.enqueue(self.queue(queue), request, now) for request in requests]

    def claim(self, queue: str, lease: str, limit: int, now: int) -> ClaimResult:
        return enqueueing.claim(self.queue(queue), lease, limit, now)

    def settle(self, queue: str, settlements: Sequence[Settlement], now: int) -> list[SettleResult | OneOf]:
        return [ending.settle(self, self.queue(queue), one, now) for one in settlements]

    def finish(self, queue: str, id: str, end: End, revision: int, now: int) -> FinishStatus | OneOf:
        return ending.finish(self, self.queue(queue), id, end, revision, now)

    # -- leases --------------------------------------------------------------------------------------

    def grant(self, queues: Iterable[str], lease: str, ttl: int, holder: str, now: int) -> None:
        for queue in queues:
            holding.grant(self.queue(queue), lease, ttl, holder, now)

    def renew(self, queues: Iterable[str], lease: str, ttl: int, now: int) -> dict[str, RenewResult]:
        return {queue: holding.renew(self.queue(queue), lease, ttl, now) for queue in queues}

    def drop(self, queue: str, lease: str, limit: int, chosen: Sequence[str] | None, now: int) -> int:
        return holding.drop(self.queue(queue), lease, limit, chosen, now)

    def reap(self, queue: str, limit: int, chosen: Sequence[str], now: int) -> list[ReapedJob]:
        return holding.reap(self.queue(queue), limit, chosen, now)

    def report(
        self, queue: str, id: str, fence: int, progress: bytes | None, memo: bytes | None = None
    ) -> ReportStatus:
        return holding.report(self.queue(queue), id, fence, progress, memo)

    # -- by id ---------------------------------------------------------------------------------------

    def cancel(self, queue: str, ids: Sequence[str], now: int, *, running: bool) -> list[CancelStatus]:
        return [by_id.cancel(self.queue(queue), id, now, running=running) for id in ids]

    def amend(self, queue: str, id: str, patch: JobPatch, now: int) -> AmendStatus:
        return by_id.amend(self.queue(queue), id, patch, now)

    def retry_failed(self, queue: str, ids: Sequence[str], now: int) -> list[RetryFailedStatus]:
        return [enqueueing.retry_failed(self.queue(queue), id, now) for id in ids]

    def forget(self, queue: str, ids: Sequence[str], now: int) -> list[bool]:
        return [by_id.forget(self.queue(queue), id, now) for id in ids]

    def get(self, queue: str, id: str) -> IdRecord:
        """Return the record of an id. Its `dropped` has only the ranges that a read must report now."""
        record = self.queue(queue).record(id)
        record.forget_old_drops(self.now)
        return record

    def list(self, queue: str, state: State) -> set[str]:
        ids = self.queue(queue).ids
        return {id for id, record in ids.items() if state in states_of_record(record, self.now)}

    # -- queues --------------------------------------------------------------------------------------

    def counts(self, queue: str) -> Counts:
        sizes: dict[str, int] = {state: len(self.list(queue, state)) for state in STATES}
        return convert(sizes, Counts)

    def configure(self, queue: str, patch: SettingsPatch, now: int) -> Settings:
        found = self.queue(queue)
        changes = {name: value for name, value in asdict(patch).items() if value is not UNSET}
        found.change_settings(replace(found.settings, **changes), now)
        return found.settings

    def import_(self, queue: str, id: str, record: IdRecord, now: int) -> None:
        """Store the record of an imported id. An active job that is not handed off is released."""
        target = self.queue(queue)
        target.ids[id] = record
        run = record.current.run if record.current else None
        if run is not None and run.lease is not None:
            ending.return_to_waiting(target, record, Release(), now)


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
