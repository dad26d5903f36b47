"""The history of a storage, built only from the results of its calls. The laws check it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen
from msgspec import UNSET

from dibs.model.job import EndKind, Slot
from dibs.model.requests import (
    Cancelled,
    Complete,
    EnqueueRequest,
    Fail,
    JobPatch,
    SettleAction,
    Settlement,
)
from dibs.model.results import ClaimResult, EnqueueResult, ReapedJob, SettleResult
from dibs_conformance.laws.admission import ObservedLimits
from dibs_conformance.laws.id_history import ClosedRun, IdHistory, OpenRun


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


class ObservedHistory:
    """The histories of all ids, updated after each call."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, str], IdHistory] = {}
        #: The runs that the newest call closed, in order.
        self.closed: list[ClosedRun] = []
        #: The slots that were read after the newest call, of ids that were used: the id, slot and history.
        self.seen: list[tuple[str, Slot, IdHistory]] = []
        self.limits: dict[str, ObservedLimits] = {}

    def history_of(self, queue: str, id: str) -> IdHistory:
        found = self.ids.get((queue, id))
        if found is None:
            found = self.ids[queue, id] = IdHistory()
        return found

    def open_runs(self, queue: str) -> list[OpenRun]:
        return [s.open for (name, _), s in self.ids.items() if name == queue and s.open is not None]

    def limits_of(self, queue: str) -> ObservedLimits:
        return self.limits.setdefault(queue, ObservedLimits())

    def add(self, call: ObservedCall) -> None:
        """Add one call to the history of its ids. Verbs without a method `_add_...` change no history."""
        self.closed = []
        add = getattr(self, f"_add_{call.verb}", None)
        if add is not None:
            add(call, **call.args)
        ids, queue = self.ids, call.queue
        self.seen = [(id, slot, ids[queue, id]) for id, slot in call.slots.items() if (queue, id) in ids]

    def _add_enqueue(self, call: ObservedCall, requests: list[EnqueueRequest]) -> None:
        for request, answer in zip(requests, call.answer, strict=True):
            if is_accepted(answer):
                self.history_of(call.queue, request.job.id).add(request, answer)

    def _add_claim(self, call: ObservedCall, lease: str, **_: Any) -> None:
        answer: ClaimResult = call.answer
        for job in answer.jobs:
            assert job.run is not None  # noqa: S101 - a claimed job runs
            self.history_of(call.queue, job.id).add_claim(job, job.run.fence, lease)
            self.limits_of(call.queue).add_start(job.data.key, job.run.claimed_at)

    def _add_configure(self, call: ObservedCall, **_: Any) -> None:
        self.limits_of(call.queue).configure(call.answer)

    def _add_settle(self, call: ObservedCall, settlements: list[Settlement]) -> None:
        for settlement, answer in zip(settlements, call.answer, strict=True):
            self._add_settlement(call.queue, settlement, answer)

    def _close(self, queue: str, id: str, kind: EndKind | None) -> None:
        observed = self.history_of(queue, id)
        assert observed.open is not None  # noqa: S101 - the caller checked it
        self.closed.append(observed.close_run(queue, kind))

    def _lose_track_of_follow_ups(self, how: SettleAction) -> None:
        if isinstance(how, Complete | Fail):
            for item in how.then:
                self.history_of(item.queue, item.job.id).lose_track()

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
            observed.cancel_waiting()
            return
        observed.drop_blocked()
        if running and observed.open.lease is None:
            self._close(queue, id, "cancelled")

    def _add_amend(self, call: ObservedCall, id: str, patch: JobPatch) -> None:
        observed = self.history_of(call.queue, id)
        if call.answer == "amended" and patch.payload is not UNSET and observed.next_payload is not None:
            observed.next_payload = patch.payload
        if call.answer == "amended" and patch.attributes is not UNSET:
            self._amend_attributes(call, observed, id, patch.attributes)

    @staticmethod
    def _amend_attributes(
        call: ObservedCall, observed: IdHistory, id: str, attributes: Mapping[str, bytes]
    ) -> None:
        slot = call.slots.get(id)
        if observed.open is not None:
            observed.open.attributes |= attributes
        elif slot is None:
            observed.kept = None  # Without a read, it is unknown if the patch went into a job or an outcome.
        elif slot.current is None:
            observed.amend_outcome(attributes)

    def _add_report(self, call: ObservedCall, id: str, fence: int, memo: bytes | None, **_: Any) -> None:
        observed = self.history_of(call.queue, id)
        run = observed.open
        if call.answer == "reported" and memo is not None and run is not None and run.fence == fence:
            observed.memo = memo or None

    def _add_retry_failed(self, call: ObservedCall, ids: list[str]) -> None:
        for id, answer in zip(ids, call.answer, strict=True):
            if answer == "queued":
                self.history_of(call.queue, id).retry_failed()

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
