"""The history of one id, built from the results of calls: its runs, its enqueues, its memo and its outcome.

A run is open from the claim that returned it until a result shows that it ended or returned to the queue. An
enqueue is live from the result that accepted it until a result shows its end.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen
from msgspec import UNSET, UnsetType

from dibs.model.job import EndKind, Job
from dibs.model.requests import EnqueueRequest, Update
from dibs.model.results import EnqueueResult

#: A memo, None for no memo, or UNSET if it is unknown.
KnownMemo = bytes | UnsetType | None


@define
class OpenRun:
    """A claimed run that has not ended and has not returned to the queue."""

    job: Job
    fence: int
    lease: str | None
    cancel_requested: bool = False
    #: The attributes of its job, with the amendments during the run.
    attributes: dict[str, bytes] = field(factory=dict)

    def covers(self, revision: int) -> bool:
        return self.job.first <= revision <= self.job.revision


@frozen
class LaterEnqueue:
    """An enqueue that was accepted during the open run."""

    revision: int
    payload: bytes
    #: True if it replaces the data of a job that comes back.
    replaces: bool
    resets: bool
    #: False for an update-only request.
    creates: bool


@frozen
class ClosedRun:
    """A run that ended or returned to the queue."""

    queue: str
    run: OpenRun
    #: None for a run that returned to the queue.
    kind: EndKind | None
    #: The enqueues during the run; None if they are not all known.
    later: list[LaterEnqueue] | None


@define
class EndedJob:
    """The outcome of the latest run that ended, as far as results show it."""

    kind: EndKind
    fence: int
    memo: KnownMemo
    attributes: Mapping[str, bytes]


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
    #: The enqueues during the open run, oldest first. None if they are not all known.
    later: list[LaterEnqueue] | None = field(factory=list)
    #: Revisions of the enqueues during the open run, also if not all are known: True for those that create.
    blocked: dict[int, bool] = field(factory=dict)
    #: Number of enqueues that updated a job or its successor.
    updates: int = 0
    #: The memo of the job that waits or is active.
    memo: KnownMemo = None
    #: The latest end, if it was observed.
    kept: EndedJob | None = None
    #: True while the id has no job, because its run ended with update-only requests alone.
    empty: bool = False
    #: The fence of the run whose range the end of an update-only request joined, by revision.
    joined: dict[int, int] = field(factory=dict)

    def add(self, request: EnqueueRequest, answer: EnqueueResult) -> None:
        """Add an accepted enqueue."""
        self.live.add(answer.revision)
        rule, payload = request.on_conflict, request.job.data.payload
        replaces = isinstance(rule, Update) and rule.replaces
        if answer.status == "blocked":
            creates = not isinstance(rule, Update) or rule.create
            resets = isinstance(rule, Update) and rule.resets
            self.blocked[answer.revision] = creates
            if self.later is not None:
                self.later.append(LaterEnqueue(answer.revision, payload, replaces, resets, creates))
        elif answer.status == "queued" or (replaces and self.next_payload is not None):
            self.next_payload = payload
        if answer.status == "queued" or (answer.status == "updated" and replaces):
            self.memo = None
        self.empty = self.empty and answer.status != "queued"
        self.updates += answer.status != "queued"

    def add_claim(self, job: Job, fence: int, lease: str) -> None:
        self.open = OpenRun(job, fence, lease, attributes=dict(job.data.attributes))
        self.newest_fence, self.memo, self.empty = fence, job.data.memo, False

    def lose_track(self) -> None:
        """Stop following the data until the next run.

        An enqueue whose result is not observed, such as a follow-up, may have changed it.
        """
        self.next_payload, self.later = None, None if self.open else []
        self.empty = False
        if self.open is None:
            self.memo = UNSET

    def close_run(self, queue: str, kind: EndKind | None) -> ClosedRun:
        """Close the open run with its kind of end, or None if it returned to the queue."""
        assert self.open is not None  # noqa: S101 - the caller checked it
        closed = ClosedRun(queue, self.open, kind, self.later)
        if kind is None:
            self._return_memo()
        else:
            self._end_run(self.open, kind)
        if self.later is None:
            self.next_payload = None
        replacing = [one.payload for one in self.later or () if one.replaces]
        if replacing and self.next_payload is not None:
            self.next_payload = replacing[-1]
        self.open, self.later, self.blocked = None, [], {}
        return closed

    def _return_memo(self) -> None:
        if self.later is None:
            self.memo = UNSET
        elif any(one.replaces for one in self.later):
            self.memo = None

    def _end_run(self, run: OpenRun, kind: EndKind) -> None:
        self.kept = EndedJob(kind, run.fence, self.memo, run.attributes)
        self.end_enqueues({r for r in self.live if run.covers(r)}, kind, run.fence)
        first = next((one for one in self.later or () if one.creates), None)
        self.next_payload = first.payload if first is not None else None
        self.memo = None if self.later is not None else UNSET
        if not any(self.blocked.values()):
            self._join_updates(run, kind)

    def _join_updates(self, run: OpenRun, kind: EndKind) -> None:
        """End the update-only requests of the run with it, unless an unobserved enqueue may have created."""
        updates = self.live & self.blocked.keys()
        if self.later is None:
            self.live -= updates
            return
        self.end_enqueues(updates, kind, run.fence)
        self.joined.update(dict.fromkeys(updates, run.fence))
        self.empty = bool(updates)

    def end_enqueues(self, revisions: set[int], kind: EndKind, fence: int) -> None:
        self.live -= revisions
        self.ended.update(dict.fromkeys(revisions, (kind, fence)))

    def cancel_waiting(self) -> None:
        """End the waiting job as cancelled, without a run."""
        self.end_enqueues(set(self.live), "cancelled", 0)
        self.lose_track()
        self.kept = None

    def drop_blocked(self) -> None:
        """Mark the enqueues that arrived during the open run as dropped by a cancel."""
        blocked = {r for r in self.live if self.open is None or not self.open.covers(r)}
        self.live -= blocked
        self.dropped |= blocked
        if blocked and self.open is not None:
            self.dropped_during = self.open.fence
        self.later, self.blocked = [], {}

    def retry_failed(self) -> None:
        """Enqueue the job of the failed outcome again. Its earlier end is forgotten."""
        kept, self.kept, self.ended = self.kept, None, {}
        self.lose_track()
        self.memo = UNSET if kept is None or kept.kind != "failed" else kept.memo

    def amend_outcome(self, attributes: Mapping[str, bytes]) -> None:
        if self.kept is not None:
            self.kept.attributes = {**self.kept.attributes, **attributes}
