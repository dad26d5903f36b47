"""The history of a storage, built only from the results of its calls. The laws check it.

A run is open from the claim that returned it until a result shows that it ended or returned to the queue. An
enqueue is live from the result that accepted it until a result shows its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen
from msgspec import UNSET

from dibs.model.job import EndKind, Job, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    SettleAction,
    Settlement,
    Update,
)
from dibs.model.results import ClaimResult, EnqueueResult, ReapedJob, SettleResult


@frozen(kw_only=True)
class ObservedCall:
    """One call: the verb, the arguments, the time, the result, and the slots that were read after it."""

    verb: str
    queue: str
    now: int
    args: Mapping[str, Any]
    answer: Any
    #: The slots of all ids of the queue; empty if they were not read.
    slots: Mapping[str, Slot] = field(factory=dict)


@define
class OpenRun:
    """A claimed run that has not ended and has not returned to the queue."""

    job: Job
    fence: int
    lease: str | None
    cancel_requested: bool = False

    def covers(self, revision: int) -> bool:
        return self.job.first <= revision <= self.job.revision


@define
class IdHistory:
    """The history of one id. `live` and `dropped` hold the revisions of enqueues."""

    open: OpenRun | None = None
    #: The newest fence. It is kept when the id is forgotten.
    newest_fence: int = 0
    live: set[int] = field(factory=set)
    #: The ended enqueues: their kind of end, and the fence of their run, by revision.
    ended: dict[int, tuple[EndKind, int]] = field(factory=dict)
    dropped: set[int] = field(factory=set)
    #: The fence of the run that was open at the latest drop.
    dropped_during: int = 0
    #: The payload of the next run. None if no job waits, or if it is unknown.
    next_payload: bytes | None = None
    #: The payloads that were enqueued during the open run, oldest first. The flag is True if the payload
    #: replaces the earlier ones. None if unknown.
    later_payloads: list[tuple[bytes, bool]] | None = field(factory=list)
    #: Number of enqueues that updated a job or its successor.
    updates: int = 0

    def add(self, request: EnqueueRequest, answer: EnqueueResult) -> None:
        """Add an accepted enqueue."""
        self.live.add(answer.revision)
        on_conflict, payload = request.on_conflict, request.job.data.payload
        replaces = isinstance(on_conflict, Update) and on_conflict.replaces
        if answer.status == "blocked":
            if self.later_payloads is not None:
                self.later_payloads.append((payload, replaces))
        elif answer.status == "queued" or (replaces and self.next_payload is not None):
            self.next_payload = payload
        self.updates += answer.status != "queued"

    def forget_payloads(self) -> None:
        """Stop following payloads until the next run.

        An enqueue whose result is not observed, such as a follow-up, may have changed them.
        """
        self.next_payload, self.later_payloads = None, None if self.open else []

    def close_run(self, kind: EndKind | None) -> None:
        """Close the open run with its kind of end, or None if it returned to the queue."""
        assert self.open is not None  # noqa: S101 - the caller checked it
        if kind is not None:
            self.end_enqueues({r for r in self.live if self.open.covers(r)}, kind, self.open.fence)
            self.next_payload = self.later_payloads[0][0] if self.later_payloads else None
        if self.later_payloads is None:
            self.next_payload = None
        replacing = [payload for payload, replaces in self.later_payloads or () if replaces]
        if replacing and self.next_payload is not None:
            self.next_payload = replacing[-1]
        self.open, self.later_payloads = None, []

    def end_enqueues(self, revisions: set[int], kind: EndKind, fence: int) -> None:
        self.live -= revisions
        self.ended.update(dict.fromkeys(revisions, (kind, fence)))

    def drop_blocked(self) -> None:
        """Mark the enqueues that arrived during the open run as dropped by a cancel."""
        blocked = {r for r in self.live if self.open is None or not self.open.covers(r)}
        self.live -= blocked
        self.dropped |= blocked
        if blocked and self.open is not None:
            self.dropped_during = self.open.fence
        self.later_payloads = []


class ObservedHistory:
    """The histories of all ids, updated after each call."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str], IdHistory] = {}
        #: All closed runs: queue, id, fence and kind of end. The kind is None for a run that returned to the
        #: queue.
        self.closed: list[tuple[str, str, int, EndKind | None]] = []

    def history_of(self, queue: str, id: str) -> IdHistory:
        return self.ids.setdefault((queue, id), IdHistory())

    def open_runs(self, queue: str) -> list[OpenRun]:
        return [s.open for (name, _), s in self.ids.items() if name == queue and s.open is not None]

    def add(self, call: ObservedCall) -> None:
        """Add one call to the history of its ids. Verbs without a method `_add_...` change no history."""
        add = getattr(self, f"_add_{call.verb}", None)
        if add is not None:
            add(call, **call.args)

    def _add_enqueue(self, call: ObservedCall, requests: list[EnqueueRequest]) -> None:
        for request, answer in zip(requests, call.answer, strict=True):
            if is_accepted(answer):
                self.history_of(call.queue, request.job.id).add(request, answer)

    def _add_claim(self, call: ObservedCall, lease: str, **_: Any) -> None:
        answer: ClaimResult = call.answer
        for job in answer.jobs:
            assert job.run is not None  # noqa: S101 - a claimed job runs
            observed = self.history_of(call.queue, job.id)
            observed.open = OpenRun(job, job.run.fence, lease)
            observed.newest_fence = job.run.fence

    def _add_settle(self, call: ObservedCall, settlements: list[Settlement]) -> None:
        for settlement, answer in zip(settlements, call.answer, strict=True):
            self._add_settlement(call.queue, settlement, answer)

    def _close(self, queue: str, id: str, kind: EndKind | None) -> None:
        observed = self.history_of(queue, id)
        assert observed.open is not None  # noqa: S101 - the caller checked it
        self.closed.append((queue, id, observed.open.fence, kind))
        observed.close_run(kind)

    def _lose_track_of_follow_ups(self, how: SettleAction) -> None:
        if isinstance(how, Complete | Fail):
            for item in how.then:
                self.history_of(item.queue, item.job.id).forget_payloads()

    def _add_settlement(self, queue: str, settlement: Settlement, answer: SettleResult) -> None:
        observed = self.history_of(queue, settlement.id)
        if observed.open is None or observed.open.fence != settlement.fence:
            return
        if answer.status == "done":
            self._close(queue, settlement.id, end_kind(settlement.action))
            self._lose_track_of_follow_ups(settlement.action)
        elif answer.status == "cancelled":
            self._close(queue, settlement.id, "cancelled")
        elif answer.status == "returned":
            self._close(queue, settlement.id, None)
        elif answer.status == "handed_off":
            observed.open.lease = None

    def _add_finish(self, call: ObservedCall, id: str, end: SettleAction, revision: int) -> None:
        observed = self.history_of(call.queue, id)
        if call.answer == "done" and observed.open is not None and observed.open.covers(revision):
            self._close(call.queue, id, end_kind(end))
            self._lose_track_of_follow_ups(end)

    def _add_reap(self, call: ObservedCall, **_: Any) -> None:
        reaped: list[ReapedJob] = list(call.answer)
        for one in reaped:
            observed = self.history_of(call.queue, one.id)
            if observed.open is not None and observed.open.fence == one.fence:
                self._close(call.queue, one.id, "cancelled" if one.kind == "cancelled" else None)

    def _add_drop(self, call: ObservedCall, lease: str, **_: Any) -> None:
        for id, slot in call.slots.items():
            observed = self.history_of(call.queue, id)
            if observed.open is None or observed.open.lease != lease:
                continue
            run = slot.current.run if slot.current else None
            if run is None or run.fence != observed.open.fence:
                self._close(call.queue, id, "cancelled" if observed.open.cancel_requested else None)

    def _add_cancel(self, call: ObservedCall, ids: list[str], *, running: bool) -> None:
        for id, answer in zip(ids, call.answer, strict=True):
            observed = self.history_of(call.queue, id)
            if answer == "requested" and observed.open is not None:
                observed.drop_blocked()
                observed.open.cancel_requested = True
            elif answer == "cancelled":
                self._add_cancelled(call.queue, id, running=running)

    def _add_cancelled(self, queue: str, id: str, *, running: bool) -> None:
        observed = self.history_of(queue, id)
        if observed.open is None:
            observed.end_enqueues(set(observed.live), "cancelled", 0)
            observed.forget_payloads()
            return
        observed.drop_blocked()
        if running and observed.open.lease is None:
            self._close(queue, id, "cancelled")

    def _add_amend(self, call: ObservedCall, id: str, patch: JobPatch) -> None:
        observed = self.history_of(call.queue, id)
        if call.answer == "amended" and patch.payload is not UNSET and observed.next_payload is not None:
            observed.next_payload = patch.payload

    def _add_retry_failed(self, call: ObservedCall, ids: list[str]) -> None:
        for id, answer in zip(ids, call.answer, strict=True):
            if answer == "queued":
                # A retried job may be pending again, so its earlier end is forgotten.
                observed = self.history_of(call.queue, id)
                observed.ended = {}
                observed.forget_payloads()

    def _add_forget(self, call: ObservedCall, ids: list[str]) -> None:
        for id in ids:
            fence = self.history_of(call.queue, id).newest_fence
            self.ids[call.queue, id] = IdHistory(newest_fence=fence)


def is_accepted(answer: EnqueueResult) -> bool:
    return not answer.repeated and answer.status in ("queued", "updated", "blocked")


def end_kind(how: SettleAction) -> EndKind | None:
    match how:
        case Complete():
            return "completed"
        case Fail():
            return "failed"
        case Cancelled():
            return "cancelled"
        case _:
            return None
